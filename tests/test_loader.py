"""Folders as transformers saves them load; folders that do not fit say what is wrong."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from kernelbook import model
from kernelbook.model.config import from_hugging_face, to_hugging_face

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 53,
    "hidden_size": 36,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
}


def save(folder, shard="5GB", **sizes):
    torch.manual_seed(0)
    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES | sizes)).eval()
    theirs.save_pretrained(folder, max_shard_size=shard)
    return theirs


def same_logits(ours, theirs):
    text = torch.arange(24).view(2, 12)
    with torch.no_grad():
        torch.testing.assert_close(ours(text), theirs(text).logits, rtol=1e-4, atol=1e-4)


@pytest.fixture
def folder(tmp_path):
    save(tmp_path)
    return tmp_path


def edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_weights(folder, change):
    path = folder / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path, metadata={"format": "pt"})


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shard", ["5GB", "20KB"])
def test_what_transformers_saves(tmp_path, tied, shard):
    theirs = save(tmp_path, shard, tie_word_embeddings=tied, attention_bias=True)
    files = len(list(tmp_path.glob("*.safetensors")))
    assert (files == 1) == (shard == "5GB")
    ours = model.load(tmp_path)
    assert (ours.lm_head is None) == tied
    assert not any(weight.requires_grad for weight in ours.parameters())
    same_logits(ours, theirs)


@pytest.mark.parametrize("spelling", ["rope_parameters", "rope_scaling", "type"])
def test_every_spelling_of_rope(tmp_path, spelling):
    """transformers 5 writes rope_parameters, 4 wrote rope_theta and rope_scaling."""
    scaling = {"rope_type": "linear", "factor": 2.0}
    theirs = save(tmp_path, rope_parameters=scaling | {"rope_theta": 777.0})
    if spelling != "rope_parameters":
        if spelling == "type":
            scaling["type"] = scaling.pop("rope_type")
        edit_config(tmp_path, rope_parameters=None, rope_theta=777.0, rope_scaling=scaling)
    ours = model.load(tmp_path)
    assert ours.config.rope_theta == 777.0
    assert ours.config.rope_scaling == {"rope_type": "linear", "factor": 2.0}
    same_logits(ours, theirs)


def test_old_config_without_head_dim_or_kv_heads():
    config = {
        "model_type": "llama",
        "vocab_size": 10,
        "hidden_size": 32,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
    }
    read = from_hugging_face(config)
    assert (read.kv_heads, read.head_dim, read.rope_theta) == (4, 8, 10000.0)


@pytest.mark.parametrize("name", ["1b", "8b"])
def test_config_there_and_back(name):
    config = model.preset(name)
    assert from_hugging_face(json.loads(json.dumps(to_hugging_face(config)))) == config


def test_dtype_is_the_files_or_the_one_asked_for(folder):
    edit_weights(folder, lambda w: w.update({name: t.half() for name, t in w.items()}))
    assert model.load(folder).dtype == torch.float16
    assert model.load(folder, torch.bfloat16).dtype == torch.bfloat16


def test_stored_rotary_tables_and_repeated_heads_are_passed_over(tmp_path):
    theirs = save(tmp_path, tie_word_embeddings=True)

    def add(weights):
        weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(5)
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()

    edit_weights(tmp_path, add)
    same_logits(model.load(tmp_path), theirs)


def test_a_missing_tensor_is_named(folder):
    edit_weights(folder, lambda weights: weights.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(ValueError, match=r"missing layers\.1\.mlp\.up_proj\.weight$"):
        model.load(folder)


def test_an_unexpected_tensor_is_named(folder):
    edit_weights(folder, lambda w: w.update({"model.layers.0.self_attn.q_norm": torch.ones(10)}))
    with pytest.raises(ValueError, match=r"unexpected layers\.0\.self_attn\.q_norm"):
        model.load(folder)


def test_an_untied_model_needs_its_head(folder):
    edit_weights(folder, lambda weights: weights.pop("lm_head.weight"))
    with pytest.raises(ValueError, match=r"missing lm_head\.weight"):
        model.load(folder)


def test_a_wrong_shape_is_named(folder):
    edit_config(folder, intermediate_size=64)
    with pytest.raises(ValueError, match=r"mlp.*is \[.*48.*\], config.json asks for \[.*64.*\]"):
        model.load(folder)


def test_a_shard_that_is_not_there(tmp_path):
    save(tmp_path, "20KB")
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(ValueError, match=f"names {shard.name}, not in the folder"):
        model.load(tmp_path)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_folder_without(folder, file):
    (folder / file).unlink()
    with pytest.raises(ValueError, match=file):
        model.load(folder)


def test_a_folder_without_a_tokenizer(folder):
    with pytest.raises(ValueError, match=r"no tokenizer\.json"):
        model.load_tokenizer(folder)


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"mlp_bias": True}, "mlp_bias = True"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"model_type": "mistral"}, "model_type = 'mistral'"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "'yarn' is not supported"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ],
)
def test_what_this_model_cannot_do_is_refused(folder, changes, message):
    edit_config(folder, **changes)
    with pytest.raises(ValueError, match=message):
        model.load(folder)


def test_a_config_that_lacks_a_size(folder):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in config.items() if k != "hidden_size"}))
    with pytest.raises(ValueError, match="lacks hidden_size"):
        model.load(folder)


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0a\nsize 3\n"


@pytest.mark.parametrize(
    "file,text,message",
    [
        ("config.json", "{not json", r"^config\.json is not JSON .*: download it again$"),
        ("config.json", b"\xff\xfe{}", r"^config\.json is not JSON"),
        ("config.json", "[]", r"^config\.json holds a list, not an object"),
        ("config.json", POINTER, r"^config\.json is a Git LFS pointer, .*git lfs pull"),
        ("model.safetensors", POINTER, r"^model\.safetensors is a Git LFS pointer"),
        ("model.safetensors", "", r"^model\.safetensors is cut short or no safetensors file"),
        ("model.safetensors.index.json", "{}", r"index\.json has no weight_map"),
    ],
)
def test_a_damaged_file_is_named(folder, file, text, message):
    (folder / file).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=message):
        model.load(folder)


@pytest.mark.parametrize("shard", ["5GB", "20KB"])
def test_a_file_cut_short_is_named(tmp_path, shard):
    save(tmp_path, shard)
    path = sorted(tmp_path.glob("*.safetensors"))[-1]
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=rf"^{path.name} is cut short .*: download it again$"):
        model.load(tmp_path)
