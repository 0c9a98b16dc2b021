"""A tiny transformer under the Hugging Face Trainer, and the same training as a plain loop.

    python -m tests.integrations.hf_training FOLDER

trains on the ranks that the environment describes and saves the weights and the multipliers.
"""

import sys
from pathlib import Path

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from torch_powalm import ConstraintRegistry, PowerALMOptimizer, zoo
from torch_powalm.integrations.huggingface import PowerALMCallback, augment_loss

STEPS, BATCH = 12, 8


def model():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=30,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=8,
        num_labels=2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return BertForSequenceClassification(config).double()  # so that ranks differ by rounding alone


class Rows(torch.utils.data.Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.tokens = torch.randint(30, (STEPS * BATCH, 8), generator=generator)
        self.labels = (self.tokens[:, 0] > 20).long()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {"input_ids": self.tokens[i], "labels": self.labels[i]}


def constraints_of(net):
    constraints = ConstraintRegistry()
    zoo.unit_norm(constraints, "rows", lambda: net.classifier.weight)
    missed = zoo.false_negative_rate(constraints, "missed", bound=0.1)
    near = zoo.target_kl(constraints, "near", zoo.frozen_copy(net), bound=0.01)
    return constraints, missed, near


def values(entries, logits, inputs):
    missed, near = entries
    return {
        "missed": missed(logits, inputs["labels"]),
        "near": near(logits, input_ids=inputs["input_ids"]),
    }


class ConstrainedTrainer(Trainer):
    entries = ()

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        loss = augment_loss(self, loss, **values(self.entries, outputs.logits, inputs))
        return (loss, outputs) if return_outputs else loss

    def _get_train_sampler(self, *arguments):
        return torch.utils.data.SequentialSampler(self.train_dataset)


# Else the loss is multiplied by the number of ranks; older versions do not know it.
_TOKENS = "average_tokens_across_devices"
_WITHOUT_TOKENS = {_TOKENS: False} if hasattr(TrainingArguments, _TOKENS) else {}


def trainer(folder, batch=BATCH, epochs=2, **settings):
    net = model()
    constraints, *entries = constraints_of(net)
    optimizer = PowerALMOptimizer(torch.optim.AdamW(net.parameters(), lr=1e-2), constraints)
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=batch,
        per_device_eval_batch_size=32,
        num_train_epochs=epochs,
        use_cpu=True,
        max_grad_norm=0.0,
        logging_steps=5,
        disable_tqdm=True,
        **{"report_to": "none", "save_strategy": "no", **_WITHOUT_TOKENS, **settings},
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    run = ConstrainedTrainer(
        net, arguments, train_dataset=Rows(), eval_dataset=Rows(), optimizers=(optimizer, schedule)
    )
    run.entries = entries
    run.add_callback(PowerALMCallback(run))
    return run, optimizer


def weights(net):
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def main(folder):
    run, optimizer = trainer(folder, batch=BATCH // 2)
    run.train()
    rank = run.args.process_index
    torch.save([weights(run.model), optimizer.dual.y], Path(folder) / f"rank{rank}.pt")


if __name__ == "__main__":
    main(sys.argv[1])
