"""What a compiled program does with the fifty requests of the evaluation, judged by the checker. Needs Python alone.

    python judge.py path/to/the/program [more of its arguments, such as --temperature 0.7 --seed 1]

Without arguments it takes the likeliest word, always.
"""

import json
import subprocess
import sys

from check.report import learned
from prompts import PROMPTS
from verdict import judged


def answer(program, arguments, request):
    """What the program says to a request."""
    command = [program, "chat", "--prompt", request, "-n", "560", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    program, *arguments = sys.argv[1:]
    stories = [answer(program, arguments or ["--temperature", "0"], request) for request, _ in PROMPTS]
    found = judged(learned(), PROMPTS, stories)
    print(json.dumps(found, indent=1))
