"""What the checker makes of many stories."""

import re


def split(text):
    """A story without its title and its moral, which are no part of its course."""
    parts = text.split("\n\n")
    if len(parts) > 1 and not re.search(r'[.!?]"?$', parts[0]):
        parts = parts[1:]
    if len(parts) > 2 and re.match(r"(?:The moral:|And the moral|Moral:|What is there)", parts[-1]):
        parts = parts[:-1]
    return "\n\n".join(parts)


def judged(checker, requests, stories):
    """How many stories have no fault, and the faults of the others."""
    faults = [checker.faults(split(story), wanted) for (_, wanted), story in zip(requests, stories)]
    return {"stories": len(stories), "without_fault": sum(not found for found in faults),
            "faults": [{"request": request, "faults": [f"{rule}: {fault}" for rule, fault in found]} for (request, _), found in zip(requests, faults) if found][:40]}
