"""How a request is written: one that is written as another was is taken apart by comparing, not by reading it."""

from dataclasses import dataclass

from tidegate_proxy import wire


@dataclass(frozen=True, slots=True)
class Form:
    """What messages have in common that differ only in their ids and in the contents of tensors of equal sizes."""

    before: bytes
    """The fields before the id; those before the tensors where there is none."""
    after: bytes
    """The fields between the id and the tensors."""
    tensors: tuple[tuple[bytes, int], ...]
    """The tag and the length of each tensor, as they are written, and that length."""

    def take(self, message: bytes) -> tuple[bytes, list[memoryview]] | None:
        """The id, as a field, and the tensors of a message, as `wire.split` has them; None: it is written otherwise."""
        position, id_field, tensors = len(self.before), b"", []
        if not message.startswith(self.before):
            return None
        if message.startswith(_ID, position):
            length = message[position + 1] if position + 1 < len(message) else 0x80
            if length >= 0x80:  # of more than a byte: read it
                return None
            id_field = message[position : position + 2 + length]
            position += 2 + length
        if not message.startswith(self.after, position):
            return None
        position += len(self.after)
        view = memoryview(message)
        for lead, size in self.tensors:
            if not message.startswith(lead, position):
                return None
            position += len(lead) + size
            tensors.append(view[position - size : position])
        return (id_field, tensors) if position == len(message) else None


def form_of(message: bytes, raw_field: int) -> Form | None:
    """The form of a message, which `wire.split` has found to be one; None: it is not written as messages usually are.

    Those that are have one id at most, and their tensors last.
    """
    raw_tag = raw_field << 3 | 2
    ids: list[tuple[int, int]] = []
    tensors: list[tuple[bytes, int]] = []
    header_end = len(message)
    for start, value, end, tag in wire.fields_of(message, 0, len(message)):
        if tag == raw_tag:
            header_end = min(header_end, start)
            tensors.append((message[start:value], end - value))
        elif tensors:
            return None
        elif tag == wire.ID_TAG:
            ids.append((start, end))
    if len(ids) > 1:
        return None
    id_start, id_end = ids[0] if ids else (header_end, header_end)
    return Form(message[:id_start], message[id_end:header_end], tuple(tensors))


_ID = bytes((wire.ID_TAG,))
