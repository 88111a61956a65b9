"""Small vocabularies and texts in many languages that stand in for those of the originals."""

from __future__ import annotations

import functools
import io
import random
import string
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mtf.models import T5Config

_FOLDER = tempfile.TemporaryDirectory(prefix="mtf-made-up-")
# Sentences of our own; not translations of each other.
SENTENCES = {
    "en": "The old library opens at nine. A grey cat sleeps under the long table, nobody minds.",
    "ro": "Țara are munți înalți și râuri reci. Bunica împletește o căciulă pentru nepoții ei.",
    "de": "Der Zug fährt heute später. Am Fluss blühen schöne gelbe Blumen über dem Weg.",
    "fr": "Le boulanger prépare du pain dès l'aube. Où est passée ma clé, près du château ?",
    "es": "Mañana lloverá en la montaña. ¿Quién dejó la ventana abierta anoche?",
    "fi": "Järven jää on jo ohutta. Äiti keittää kahvia ja lukee päivän lehteä.",
    "tr": "Çocuklar bahçede top oynuyor. Şehrin ışıkları akşam göğünde parlıyor.",
    "vi": "Hôm nay trời mưa nhỏ. Người bạn cũ đến thăm và mang theo một giỏ trái cây.",
    "sw": "Mvua inanyesha leo asubuhi. Watoto wanasoma kitabu chini ya mti mkubwa.",
    "ru": "Вчера выпал первый снег. Сосед чинит старую лодку у тихого озера.",
    "el": "Η θάλασσα είναι ήρεμη σήμερα. Το μικρό καράβι φεύγει για το νησί.",
    "ar": "القطار يصل في المساء. يقرأ الرجل كتابا قديما قرب النافذة.",
    "hi": "आज हवा ठंडी है। बच्चा नदी के पास एक छोटा घर बनाता है।",
    "th": "วันนี้อากาศดี แมวตัวเล็กนอนอยู่ใต้โต๊ะไม้",
    "zh": "今天早上下雨了。老师在窗边读一本旧书，学生们都很安静。",
    "ja": "昨日、古い橋を渡って海まで歩いた。子供たちは砂で城を作った。",
}
# What is hard for tokenizers.
HARD_LINES = (
    "  two  spaces and\ttab\nnew line  ",
    "ﬁ ½ ① Ａ e\u0301 zero\u200bwidth",
    "emoji 😀 and 𓀀, rare ⵣ",
    "x" * 300,
    "",
)


@functools.cache
def lines(language: str = "", number: int = 200) -> tuple[str, ...]:
    """Returns lines of words of a language, or of all languages in turn; always the same."""
    rng = random.Random(0)
    languages = [language] if language else list(SENTENCES)
    return tuple(
        " ".join(rng.choices(SENTENCES[languages[i % len(languages)]].split(), k=12))
        for i in range(number)
    )


@functools.cache
def t5_model() -> Path:
    """Returns the file of a SentencePiece model without sentinels, as T5's."""
    file = Path(_FOLDER.name, "t5.spiece.model")
    file.write_bytes(sentencepiece_model())
    return file


@functools.cache
def mt5_model() -> Path:
    """Returns the file of a SentencePiece model with bytes and a hundred sentinels, as mT5's."""
    file = Path(_FOLDER.name, "mt5.spiece.model")
    file.write_bytes(sentencepiece_model(num_pieces=1000, num_sentinels=100))
    return file


def sentencepiece_model(
    texts: Iterable[str] = (), *, num_pieces: int = 700, num_sentinels: int = 0
) -> bytes:
    """Returns a SentencePiece model with T5's special ids, trained on texts.

    With `num_sentinels`, it has bytes for unknown characters, and its last pieces are the
    sentinels, as in mT5's model.
    """
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    content = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(list(texts) or lines()),
        model_writer=content,
        vocab_size=num_pieces,
        byte_fallback=bool(num_sentinels),
        character_coverage=1.0,
        required_chars=string.printable.strip() if not texts else "",
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    model = sentencepiece_model_pb2.ModelProto.FromString(content.getvalue())
    for index in reversed(range(num_sentinels)):
        piece = model.pieces.add(piece=f"▁<extra_id_{index}>", score=0.0)
        piece.type = piece.USER_DEFINED
    return bytes(model.SerializeToString())


def network(**values: Any) -> T5Config:
    """Returns a small network without dropout and scans, in float32; `values` differ from that."""
    from mtf.models import T5Config

    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1, "scan_layers": False}
    sizes = {"vocab_size": 32, "emb_dim": 8, "num_heads": 2, "head_dim": 4, "mlp_dim": 12}
    return T5Config(**{**layers, **sizes, "dropout_rate": 0.0, "dtype": "float32", **values})
