"""Reads Story Cloze from the CSV files that its authors send on request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mtf.base.errors import UserError
from mtf.data.sources.files import open_files

FORM = "https://cs.rochester.edu/nlp/rocstories/"
# The authors' names for the files of the 2016 version.
FILES = {
    "validation": "cloze_test_val__spring2016 - cloze_test_ALL_val.csv",
    "test": "cloze_test_test__spring2016 - cloze_test_ALL_test.csv",
}
# Name of a column in the file → name that promptsource's templates expect.
_COLUMNS = {
    "InputStoryid": "story_id",
    **{f"InputSentence{number}": f"input_sentence_{number}" for number in (1, 2, 3, 4)},
    "RandomFifthSentenceQuiz1": "sentence_quiz1",
    "RandomFifthSentenceQuiz2": "sentence_quiz2",
    "AnswerRightEnding": "answer_right_ending",
}


def read_csv(file: Path) -> list[dict[str, Any]]:
    """Returns the records of a Story Cloze file; raises UserError for any other file."""
    records = []
    for row in open_files(str(file)):
        missing = [name for name in _COLUMNS if name not in row]
        if missing:
            raise UserError(
                f"{file}: the column {missing[0]} is missing; expected the file "
                f"{FILES['validation']!r}"
            )
        record = {new: row[old] for old, new in _COLUMNS.items()}
        records.append({**record, "answer_right_ending": int(record["answer_right_ending"])})
    return records
