"""Provokes every refusal and prints the messages; exit code 1 where one is not as it should be.

python tests/messages/run.py             one line for each
python tests/messages/run.py --markdown  as a list for a document
python tests/messages/run.py --only WORD those whose name holds a word
"""

import argparse
import os
import sys
import tempfile
import traceback
from pathlib import Path

# A program that was compiled before is not compiled, and nothing in the compiler refuses it.
os.environ["TVM_EXT_CACHE"] = "off"

# The test folders are no packages: what they share has one of its own.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1] / "shared"))

import failure_cases  # noqa: F401
import file_cases  # noqa: F401
import graph_cases  # noqa: F401
import option_cases  # noqa: F401
from message_form import faults
from provoked import CASES, RefusalCase


def message_of(case: RefusalCase) -> tuple[str, list[str]]:
    """The message of a case, and what is wrong with it."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            message = case.message(Path(folder))
        except BaseException as error:  # noqa: BLE001
            text = "".join(traceback.format_exception(error)[-3:])
            return text, ["not refused by an error of ours"]
        text = message.replace(f"{folder}/", "")
    missing = [f"it does not name {word!r}" for word in case.says if word not in message]
    return text, faults(message) + missing


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--markdown", action="store_true", help="a list for a document")
    parser.add_argument("--only", default="", help="a word of the names")
    arguments = parser.parse_args()
    chosen = [case for case in CASES if arguments.only in case.name]
    bad = 0
    for number, case in enumerate(chosen, start=1):
        text, wrong = message_of(case)
        bad += bool(wrong)
        if arguments.markdown:
            print(f"{number}. {case.name}: `{text}`")
        else:
            print(f"{number:3} {case.name}\n      {text}")
        for fault in wrong:
            print(f"      !! {fault}")
    print(f"{len(chosen)} messages, {bad} not as they should be", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
