"""Tables of what is wrong: each row below its message, and a mark where the mistake is."""


def below(table: str) -> list[tuple[str, str]]:
    """Rows, which are indented, each with the message above it; ⏎ is the end of a line."""
    found = []
    message = ""
    for line in table.strip("\n").splitlines():
        if line.startswith("    "):
            found.append((line[4:].replace("⏎", "\n"), message))
        else:
            message = line
    return found


def mistakes(table: str) -> list[tuple[str, str, str]]:
    """Rows ``GOOD ⇒ BAD``: what stands there, what stands there instead, and the message."""
    found = []
    for row, message in below(table):
        good, _, bad = row.partition(" ⇒")
        found.append((good, bad.removeprefix(" "), message))
    return found


def unmarked(text: str) -> tuple[str, int, int]:
    """A text without its mark ``‸``, and the line and column (from 1) where it stood."""
    before, _, after = text.partition("‸")
    return (
        before + after,
        before.count("\n") + 1,
        len(before) - before.rfind("\n"),
    )
