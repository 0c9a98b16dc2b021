import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
from torch_powalm import ConstraintRegistry, PowerALMOptimizer, zoo
from torch_powalm.integrations.huggingface import PowerALMCallback, augment_loss

torch.manual_seed(0)
words = torch.randint(5, 60, (3000, 10))
label = (words < 15).sum(1).clamp(max=3)                         # four classes, the last ones rare
wrong = torch.rand(3000) < 0.2                                   # and noisy labels
label = torch.where(wrong, torch.randint(4, (3000,)), label)
data = [{"input_ids": w, "labels": l} for w, l in zip(words, label)]
model = BertForSequenceClassification(BertConfig(
    vocab_size=60, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
    max_position_embeddings=16, num_labels=4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
constraints = ConstraintRegistry()
classes = zoo.class_loss(constraints, "classes", classes=4, bound=0.8)

class Constrained(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        losses = torch.nn.functional.cross_entropy(outputs.logits, inputs["labels"], reduction="none")
        loss = augment_loss(self, loss, classes=classes(losses, inputs["labels"]))
        return (loss, outputs) if return_outputs else loss

steps = 1000
optimizer = PowerALMOptimizer(torch.optim.AdamW(model.parameters(), lr=2e-3), constraints)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
arguments = TrainingArguments("hf_out", max_steps=steps, per_device_train_batch_size=60, use_cpu=True, report_to=[],
                              save_strategy="no", disable_tqdm=True, logging_strategy="no")
trainer = Constrained(model, arguments, train_dataset=data, optimizers=(optimizer, scheduler))
trainer.add_callback(PowerALMCallback(trainer))
trainer.train()
print(optimizer.report())
model.eval()
with torch.no_grad():
    losses = torch.nn.functional.cross_entropy(model(words).logits, label, reduction="none")
worst = [float(losses[label == k].mean()) for k in range(4)]
print("class losses", worst)
assert max(worst) <= 0.8 * 1.05
