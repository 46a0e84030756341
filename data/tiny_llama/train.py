"""Train the course's small Llama again: minutes on one GPU, `python data/tiny_llama/train.py`.

Writes model.safetensors (fp16), config.json, tokenizer.json, held_out.txt and README.md.
"""

import argparse
import json
import math
import random
import time
from pathlib import Path

import plays
import torch
import torch.nn.functional as F
from card import write_card
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from kernelbook import model as llama
from kernelbook.model.config import to_hugging_face

CONFIG = llama.LlamaConfig(
    vocab=1024,
    hidden=256,
    intermediate=704,
    layers=4,
    heads=4,
    kv_heads=2,
    head_dim=64,
    context=512,
    tied=True,
)


def options():
    """Command line: where from, where to, and the settings that were tried."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, help="folder of plays; default: download them")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--steps", type=int, default=4100)
    parser.add_argument("--seconds", type=float, default=1e9, help="finish within this time")
    parser.add_argument("--batch", type=int, default=32, help="windows of 512 tokens a step")
    parser.add_argument("--rate", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument("--decay", type=float, default=0.1, help="weight decay of matrices")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--folio", type=float, default=0.5, help="share of old-spelling text")
    parser.add_argument("--merges", type=float, default=0.1, help="BPE dropout of half the text")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """Byte-pair encoding of 1024 tokens: 256 bytes and 768 merges, so any text can be written."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=CONFIG.vocab, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, texts: list[str], device, merges: float = 0.0) -> torch.Tensor:
    """All texts as one row of tokens; `merges` is the chance of leaving a merge out."""
    tokenizer.model.dropout = merges or None
    ids = [i for encoding in tokenizer.encode_batch(texts) for i in encoding.ids]
    tokenizer.model.dropout = None
    return torch.tensor(ids, device=device)


class Windows:
    """Random windows of the training text, which becomes plainer as training proceeds.

    In the first 60% a share of windows comes from the folio, and half of the others from spellings
    with merges left out: both tell the model more about the same language than its 4.5 MB do.
    """

    def __init__(self, tokenizer, parts, args):
        self.plain = encode(tokenizer, parts["train"], args.device)
        self.folio = encode(tokenizer, parts["folio"], args.device)
        copies = 6 if args.merges else 0
        self.split = [
            encode(tokenizer, parts["train"], args.device, args.merges) for _ in range(copies)
        ]
        self.args = args

    def batch(self, progress: float) -> torch.Tensor:
        """[batch, context + 1] tokens."""
        length = CONFIG.context + 1
        tokens = self._source(progress)
        starts = torch.randint(len(tokens) - length, (self.args.batch, 1), device=tokens.device)
        return tokens[starts + torch.arange(length, device=tokens.device)]

    def _source(self, progress: float) -> torch.Tensor:
        if progress < 0.6 and random.random() < self.args.folio:
            return self.folio
        if progress < 0.8 and self.split and random.random() < 0.5:
            return random.choice(self.split)
        return self.plain


def with_dropout(p: float) -> dict:
    """The model's functions for training: fast ones, with dropout behind attention and MLP."""

    def attention(q, k, v, causal=False, scale=None):
        return F.dropout(llama.sdpa_attention(q, k, v, causal, scale), p)

    def mlp(x, gate, up, down):
        return F.dropout(llama.swiglu(x, gate, up, down), p)

    def norm(x, weight, eps):
        return F.rms_norm(x, weight.shape, weight, eps)

    return {"attention": attention, "mlp": mlp, "norm": norm}


def optimizer(model, args):
    """AdamW; norms and the embedding are not decayed."""
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.dim() != 2 or "embed" in n]
    groups = [{"params": matrices, "weight_decay": args.decay}, {"params": others}]
    return torch.optim.AdamW(groups, lr=args.rate, betas=(0.9, 0.95), weight_decay=0.0)


def rate(progress: float) -> float:
    """Share of the peak rate: 3% warm-up, then half a cosine to 2%."""
    if progress < 0.03:
        return progress / 0.03
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (progress - 0.03) / 0.97))


@torch.inference_mode()
def validation_bits(model, tokens: torch.Tensor, size: int) -> float:
    """Bits a byte over windows that do not overlap: quick, slightly pessimistic."""
    windows = tokens[: (len(tokens) - 1) // CONFIG.context * CONFIG.context + 1]
    inputs, targets = windows[:-1].view(-1, CONFIG.context), windows[1:]
    nats, count = 0.0, inputs.shape[0]
    with model.using(attention=llama.sdpa_attention):
        for i in range(0, count, 64):
            logits = model(inputs[i : i + 64]).flatten(0, 1)
            goal = targets[i * CONFIG.context : (i + 64) * CONFIG.context]
            nats += F.cross_entropy(logits, goal, reduction="sum").item()
    return nats / math.log(2) / (size * len(targets) / len(tokens))


def train(model, windows, validation, size, args):
    """Best weights by validation; prints a line for each look at it."""
    optimize, started, best, kept = optimizer(model, args), time.time(), math.inf, None
    autocast = torch.autocast(args.device, torch.bfloat16, enabled=args.device == "cuda")
    step, progress = 0, 0.0
    while progress < 1:
        progress = max((step + 1) / args.steps, (time.time() - started) / args.seconds)
        for group in optimize.param_groups:
            group["lr"] = args.rate * rate(min(progress, 1))
        tokens = windows.batch(progress)
        with autocast, model.using(**with_dropout(args.dropout)):
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        optimize.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimize.step()
        step += 1
        if step % 250 == 0 or (progress > 0.7 and step % 50 == 0) or progress >= 1:
            bits = validation_bits(model, validation, size)
            if bits < best:
                best, kept = bits, {n: p.detach().clone() for n, p in model.named_parameters()}
            if step % 250 == 0 or progress >= 1:
                elapsed = time.time() - started
                print(f"{step} {elapsed:.0f}s train {loss:.3f} validation {bits:.4f}", flush=True)
    model.load_state_dict(kept)
    return step, best


def save(model, tokenizer, excerpt: str, folder: Path):
    """The folder in Hugging Face's layout: fp16 weights, config, tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {f"model.{n}": p.detach().half().cpu() for n, p in model.named_parameters()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(to_hugging_face(CONFIG), indent=2) + "\n")
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    (folder / "held_out.txt").write_text(excerpt)
    (folder / "model.safetensors").chmod(0o644)  # the library writes it readable by its owner only


def main():
    """Read, tokenize, train, save, and measure what was saved."""
    args = options()
    torch.manual_seed(args.seed)
    random.seed(args.seed)
    parts = plays.read(args.text or plays.download(Path("build/plays")))
    tokenizer = train_tokenizer(parts["train"])
    windows = Windows(tokenizer, parts, args)
    validation = encode(tokenizer, parts["validation"], args.device)
    size = sum(len(text.encode()) for text in parts["validation"])
    print(f"{len(windows.plain)} tokens to train on, {len(validation)} to validate on", flush=True)
    model = llama.random_model(CONFIG, torch.float32, args.device, args.seed).requires_grad_(True)
    torch.nn.init.normal_(model.embed_tokens.weight, std=0.02)
    steps, validated = train(model, windows, validation, size, args)
    save(model, tokenizer, plays.excerpt(parts["test"][0]), args.out)
    write_card(args, parts, steps, validated)


if __name__ == "__main__":
    main()
