"""A language model of a few thousand parameters and some sentences for it, made without a network.

python make_language_model.py FOLDER        writes FOLDER/model and FOLDER/data
"""

import json
import random
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "eos_token": "[EOS]"}


def main() -> None:
    folder = Path(sys.argv[1])
    random.seed(0)
    torch.manual_seed(0)
    sentences = [" ".join(random.choices(WORDS, k=random.randint(8, 40))) for _ in range(400)]
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(sentences, trainers.WordLevelTrainer(special_tokens=[*SPECIAL.values()]))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL).save_pretrained(folder / "model")
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    (folder / "data").mkdir()
    rows = (json.dumps({"text": sentence}) + "\n" for sentence in sentences)
    (folder / "data" / "train.jsonl").write_text("".join(rows))


if __name__ == "__main__":
    main()
