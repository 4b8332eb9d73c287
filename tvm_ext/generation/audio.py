"""Sound as encoders of speech models read it: a waveform, or the spectrum that Whisper reads."""

from pathlib import Path

import numpy as np

from tvm_ext.errors import InputError

# What speech models are trained with.
SAMPLES_PER_SECOND = 16_000

# Whisper's spectrum (Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision",
# 2022): windows of 25 ms every 10 ms, over 30 s.
_WINDOW, _STEP, _SECONDS = 400, 160, 30
_LEAST_POWER = 1e-10
# Logarithms that are so much below the largest are cut off.
_RANGE = 8.0


def waveform(audio: "np.ndarray | str | Path", samples_per_second: int) -> np.ndarray:
    """One channel of float32 samples at 16,000 a second.

    Parameters
    ----------
    audio : array of shape (samples,) or path
        Samples from -1 to 1, or a WAV file, which says its rate itself.
    samples_per_second : int
        Rate of an array.

    Raises
    ------
    InputError
        The file cannot be read, or the array has another rank or no samples.
    """
    samples = audio
    if isinstance(audio, str | Path):
        samples, samples_per_second = _read_wave(Path(audio))
    array = np.asarray(samples)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind != "f":
        raise InputError(
            f"the waveform is {array.dtype}{list(array.shape)}; expected floats of one channel, "
            "from -1 to 1: give such an array, or a WAV file"
        )
    if samples_per_second != SAMPLES_PER_SECOND:
        from math import gcd

        from scipy.signal import resample_poly

        common = gcd(samples_per_second, SAMPLES_PER_SECOND)
        array = resample_poly(array, SAMPLES_PER_SECOND // common, samples_per_second // common)
    return np.ascontiguousarray(array, dtype=np.float32)


def log_mel_spectrum(samples: np.ndarray, bands: int = 80) -> np.ndarray:
    """Whisper's input for a waveform of 30 s or less, which silence is put behind.

    Parameters
    ----------
    samples : array of shape (samples,)
        float32, at 16,000 a second.
    bands : int
        Mel bands of the model.

    Returns
    -------
    array of shape (bands, 3000)
        float32.

    Raises
    ------
    InputError
        The waveform is longer.
    """
    room = _SECONDS * SAMPLES_PER_SECOND
    if samples.size > room:
        raise InputError(
            f"the waveform lasts {samples.size / SAMPLES_PER_SECOND:.1f} s, and the encoder reads "
            f"{_SECONDS} s; expected at most that: cut it"
        )
    padded = np.pad(samples.astype(np.float64), (0, room - samples.size))
    padded = np.pad(padded, _WINDOW // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, _WINDOW)[::_STEP][:-1]
    # A periodic window: its first sample is the one behind the last.
    window = np.hanning(_WINDOW + 1)[:-1]
    power = np.abs(np.fft.rfft(frames * window, axis=1)) ** 2
    logarithms = np.log10(np.maximum(mel_filters(bands) @ power.T, _LEAST_POWER))
    logarithms = np.maximum(logarithms, logarithms.max() - _RANGE)
    return ((logarithms + 4.0) / 4.0).astype(np.float32)


def mel_filters(bands: int) -> np.ndarray:
    """Triangles over the frequencies of a window, (bands, frequencies), each of area 1.

    Slaney's mel scale ("Auditory Toolbox", 1998): linear up to 1,000 Hz, and logarithmic above.
    """
    frequencies = np.fft.rfftfreq(_WINDOW, 1 / SAMPLES_PER_SECOND)
    highest = _mel_of(SAMPLES_PER_SECOND / 2)
    edges = _frequencies_of(np.linspace(0.0, highest, bands + 2))
    widths = np.diff(edges)
    slopes = edges[:, None] - frequencies[None, :]
    rising = -slopes[:-2] / widths[:-1, None]
    falling = slopes[2:] / widths[1:, None]
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    return np.asarray(triangles * (2.0 / (edges[2:] - edges[:-2]))[:, None])


_LINEAR = 200.0 / 3
_BREAK = 1000.0
_STEP_ABOVE = np.log(6.4) / 27.0


def _mel_of(frequency: float) -> float:
    return float(_BREAK / _LINEAR + np.log(frequency / _BREAK) / _STEP_ABOVE)


def _frequencies_of(mels: np.ndarray) -> np.ndarray:
    above = _BREAK * np.exp(_STEP_ABOVE * (mels - _BREAK / _LINEAR))
    return np.where(mels < _BREAK / _LINEAR, _LINEAR * mels, above)


def _read_wave(path: Path) -> tuple[np.ndarray, int]:
    """The samples of a file from -1 to 1, the mean of its channels, and their rate."""
    from scipy.io import wavfile

    try:
        rate, samples = wavfile.read(path)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(
            f"{path} cannot be read as sound; expected a WAV file: convert it to one"
        ) from error
    if samples.dtype.kind == "u":
        samples = samples.astype(np.float32) / 128 - 1
    elif samples.dtype.kind == "i":
        samples = samples / float(np.iinfo(samples.dtype).max)
    return np.asarray(samples if samples.ndim == 1 else samples.mean(axis=1)), int(rate)
