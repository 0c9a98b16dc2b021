import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
from torch_powalm import ConstraintRegistry, PowerALMOptimizer, zoo
from torch_powalm.integrations.huggingface import PowerALMCallback, augment_loss

torch.manual_seed(0)                                            # are there more ones than twos?
ids = torch.randint(0, 6, (2000, 12))
label = ((ids == 1).sum(1) + torch.randint(0, 2, (2000,)) > (ids == 2).sum(1) + 1).long()
data = [{"input_ids": i, "labels": k} for i, k in zip(ids, label)]
config = BertConfig(
    vocab_size=6, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
    max_position_embeddings=12, hidden_dropout_prob=0, attention_probs_dropout_prob=0,
)
model = BertForSequenceClassification(config)
constraints = ConstraintRegistry()
missed = zoo.false_negative_rate(constraints, "missed", bound=0.05)

class Constrained(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        loss = augment_loss(self, loss, missed=missed(outputs.logits, inputs["labels"]))
        return (loss, outputs) if return_outputs else loss

optimizer = PowerALMOptimizer(torch.optim.AdamW(model.parameters(), lr=1e-3), constraints)
arguments = TrainingArguments(
    "out", num_train_epochs=10, per_device_train_batch_size=50, use_cpu=True, report_to=[], save_strategy="no",
)
trainer = Constrained(model, arguments, train_dataset=data, optimizers=(optimizer, None))    # its own decaying rate
trainer.add_callback(PowerALMCallback(trainer))
trainer.train()
print(optimizer.report())
decided = model.eval()(ids).logits.argmax(1)
rate = float((decided[label == 1] == 0).float().mean())
print("missed", rate, "accuracy", float((decided == label).float().mean()))
assert rate <= 0.05
