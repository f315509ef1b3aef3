"""Header fields as they stand on the wire: encoded words where needed, folded once, never in the middle of a word.

Python's own folding turns a long unbroken word, such as the URL of ``List-Unsubscribe``, into encoded words that
receivers do not decode there. What is ASCII stays as it is here (RFC 5322 section 2.2.3).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from email.header import Header
from typing import Final

from jobqueue.bundled.email.address import Mailbox

_FOLD_AT: Final = 78  # characters that a line should not exceed, RFC 5322 section 2.1.1
_LIMIT: Final = 998  # characters that a line must not exceed, same place
_ENCODED_WORD_LINE: Final = 76  # RFC 2047 section 2

# RFC 5322 section 3.2.3, with the space between atoms and the dot that section 4.1 tolerates excluded
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+\-/=?^_`{|}~ ]*")


def encode_text(name: str, text: str) -> str:
    """An unstructured field's value: ``text`` itself if ASCII can carry it, else encoded words (RFC 2047)."""
    return fold(name, text) if _travels_plain(name, text) else _encoded_words(name, text)


def encode_mailboxes(name: str, mailboxes: Sequence[Mailbox]) -> str:
    """The value of an address field, with line breaks between addresses where the line would get too long."""
    return fold(name, ", ".join(_mailbox(name, mailbox) for mailbox in mailboxes))


def fold(name: str, text: str) -> str:
    """``text`` with line breaks before spaces, so that removing them gives the same text again."""
    lines: list[str] = []
    line = f"{name}:"
    # Each piece is a word with the spaces before it
    for piece in re.findall(r" *[^ ]+", " " + text):
        if len(line) + len(piece) > _FOLD_AT and line.strip() and line != f"{name}:":
            lines.append(line)
            line = ""
        line += piece
    lines.append(line)
    return "\r\n".join(lines).removeprefix(f"{name}:").removeprefix(" ")


def _travels_plain(name: str, text: str) -> bool:
    """Nothing that has to be encoded, or would be taken for something encoded, or does not survive at an end."""
    return (
        text.isascii()
        and "=?" not in text
        and text == text.strip(" ")
        and all(len(word) + len(name) + 2 < _LIMIT for word in re.findall(r" *[^ ]+", text))
    )


def _encoded_words(name: str, text: str) -> str:
    return Header(text, "utf-8", _ENCODED_WORD_LINE, name).encode(linesep="\r\n")


def _mailbox(name: str, mailbox: Mailbox) -> str:
    if not mailbox.name:
        return mailbox.address
    return f"{_phrase(name, mailbox.name)} <{mailbox.address}>"


def _phrase(name: str, text: str) -> str:
    """A display name: as atoms, quoted, or as encoded words, which are split but not folded here."""
    if not _travels_plain(name, text):
        return " ".join(_encoded_words("", text).split())
    if _PLAIN_NAME.fullmatch(text):
        return text
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{quoted}"'
