"""Mail addresses: what may stand in a header and in the envelope.

Python's header parser repairs what it can; a queue must not guess. So an address is either one mailbox by the
grammar of RFC 5321 section 4.1.2, with or without a display name, or it is refused.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Final

# RFC 5322 section 3.2.3, and RFC 6531 section 3.3 for what is beyond ASCII
_ATEXT: Final = r"[A-Za-z0-9!#$%&'*+\-/=?^_`{|}~\u0080-\U0010ffff]"
_LOCAL: Final = re.compile(rf'{_ATEXT}+(\.{_ATEXT}+)*|"([^"\\]|\\[ -~])*"')
_LABEL: Final = r"[A-Za-z0-9]([A-Za-z0-9\-]*[A-Za-z0-9])?"
_DOMAIN: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_LITERAL: Final = re.compile(r"\[[A-Za-z0-9:.\-]+\]")

# Only quoted may these stand in a display name (RFC 5322 section 3.2.3; the dot is tolerated, section 4.1)
_SPECIALS: Final = frozenset('()<>[]:;@\\,"')

# IDNA 2003, which Python has, maps these to other letters; IDNA 2008 does not (RFC 5894 section 7.2)
_DEVIATIONS: Final = frozenset("ßς\u200c\u200d")

_MAX_LOCAL: Final = 64  # octets, RFC 5321 section 4.5.3.1.1
_MAX_ADDRESS: Final = 254  # octets: a path of 256 (section 4.5.3.1.3) without its angle brackets
_MAX_NAME: Final = 500


@dataclass(frozen=True, slots=True)
class Mailbox:
    """One address: the display name, which may be empty, and ``local@domain`` with the domain in ASCII."""

    name: str
    local: str
    domain: str

    @property
    def address(self) -> str:
        """What goes into the envelope."""
        return f"{self.local}@{self.domain}"

    @property
    def needs_smtputf8(self) -> bool:
        """The local part is not ASCII: only a server with SMTPUTF8 (RFC 6531) takes it."""
        return not self.local.isascii()


def parse_mailbox(text: str) -> Mailbox:
    """``ada@example.com`` or ``Ada Lovelace <ada@example.com>``.

    :raises ValueError: saying what is wrong, without the address.
    """
    check_line(text)
    text = text.strip()
    name = ""
    if text.endswith(">"):
        name, bracket, text = text[:-1].rpartition("<")
        if not bracket:
            raise ValueError("has '>' without '<'")
        name = _display_name(name.strip())
    local, at, domain = text.rpartition("@")
    if not at:
        raise ValueError("is no mail address: it has no '@'")
    if not _LOCAL.fullmatch(local):
        raise ValueError("is no mail address: what stands before the '@' is malformed (one address in each text)")
    mailbox = Mailbox(name, local, _ascii_domain(domain))
    if len(local.encode()) > _MAX_LOCAL or len(mailbox.address.encode()) > _MAX_ADDRESS:
        raise ValueError(f"is longer than {_MAX_LOCAL} bytes before the '@' or {_MAX_ADDRESS} bytes in all")
    return mailbox


def check_line(text: str) -> str:
    """Return ``text``, which must stay within its line: a line break would begin another header (RFC 5322 2.2).

    Refused are all control characters, NEL, U+2028 and U+2029 (some software breaks lines at them too), and
    lone surrogates, which are no text.

    :raises ValueError: naming the character, not the text.
    """
    for character in text:
        if unicodedata.category(character) in {"Cc", "Zl", "Zp", "Cs"}:
            raise ValueError(f"holds the character U+{ord(character):04X}, which cannot stand in a mail header")
    return text


def _display_name(name: str) -> str:
    if len(name) > _MAX_NAME:
        raise ValueError(f"has a display name of more than {_MAX_NAME} characters")
    if len(name) >= 2 and name[0] == name[-1] == '"':
        name = name[1:-1]
        if re.search(r'(?<!\\)(\\\\)*"|(?<!\\)(\\\\)*\\$', name):
            raise ValueError("has a display name with a stray quote or backslash")
        return re.sub(r"\\(.)", r"\1", name)
    if _SPECIALS.intersection(name):
        raise ValueError('has a display name with special characters; put it in double quotes: "Lovelace, Ada" <...>')
    return name


def _ascii_domain(domain: str) -> str:
    """The domain in lower case, as A-labels where it is not ASCII (RFC 5890), so that any server takes it."""
    if _LITERAL.fullmatch(domain):
        return domain
    if _DEVIATIONS.intersection(domain):
        raise ValueError("has a domain whose ASCII form is ambiguous; write it in its xn-- form")
    try:
        domain = domain.lower().encode("idna").decode()
    except UnicodeError:
        raise ValueError("is no mail address: its domain is malformed") from None
    if not _DOMAIN.fullmatch(domain):
        raise ValueError("is no mail address: its domain is malformed")
    return domain
