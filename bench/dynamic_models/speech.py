"""Speech without a microphone: espeak-ng's synthesiser, whose library the wheel espeakng-loader carries."""

import ctypes
from functools import cache
from typing import Any

import espeakng_loader
import numpy as np
from numpy.typing import NDArray

RATE_HZ = 22_050
"""Samples per second of what it speaks."""
_SYNCHRONOUS, _POSITION_CHARACTERS, _UTF8 = 2, 1, 1
"""espeak_AUDIO_OUTPUT, espeak_POSITION_TYPE and the flag of espeak-ng's speak_lib.h."""
_Heard = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


@cache
def speak(*texts: str) -> list[NDArray[np.float32]]:
    """Sentences in English: samples from -1 to 1, RATE_HZ of them a second.

    The same sentences sound the same in every process. They are spoken once: what espeak-ng said before colors what it
    says next. Raises RuntimeError where the library does not work on this machine.
    """
    library: ctypes.CDLL | None = espeakng_loader.load_library()
    if library is None:
        raise RuntimeError("espeakng-loader has no library of espeak-ng for this machine")
    parts: list[NDArray[np.int16]] = []

    def heard(samples: Any, count: int, _events: Any) -> int:  # noqa: ANN401 - a pointer, null at the end
        if samples and count:
            parts.append(np.ctypeslib.as_array(samples, (count,)).astype(np.int16))
        return 0

    data = espeakng_loader.get_data_path().encode()
    rate = library.espeak_Initialize(_SYNCHRONOUS, 0, data, 0)
    if rate != RATE_HZ or library.espeak_SetVoiceByName(b"en"):
        raise RuntimeError(f"espeak-ng did not start with its English voice and {RATE_HZ} samples a second")
    listener = _Heard(heard)
    library.espeak_SetSynthCallback(listener)
    spoken = []
    for text in texts:
        written = text.encode() + b"\0"
        failed = library.espeak_Synth(written, len(written), 0, _POSITION_CHARACTERS, 0, _UTF8, None, None)
        if failed or not parts:
            raise RuntimeError(f"espeak-ng did not speak {text!r}: status {failed}")
        spoken.append(np.concatenate(parts).astype(np.float32) / 32768)
        parts.clear()
    library.espeak_Terminate()
    return spoken
