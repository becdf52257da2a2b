"""Sound -> mel-frequency cepstral coefficients, with torch alone."""

from __future__ import annotations

import io
import math
import wave

import numpy as np
import torch
from torch import Tensor

from onlinecde.data.errors import DataError


def read_wav(data: bytes, origin: str) -> tuple[Tensor, int]:
    """The samples (sample,) float32 in [-1, 1) and the rate of a 16-bit mono PCM file."""
    try:
        with wave.open(io.BytesIO(data)) as file:
            width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
            frames = file.readframes(file.getnframes())
            promised = file.getnframes()
    except (wave.Error, EOFError) as error:
        raise DataError(f"{origin}: this is not a wav file ({error}): fetch it again.") from error
    if width != 2 or channels != 1:
        raise DataError(
            f"{origin}: {8 * width} bit and {channels} channels: it must be 16 bit and one channel."
        )
    if len(frames) != 2 * promised:
        raise DataError(
            f"{origin}: {len(frames) // 2} of {promised} samples: the file is cut short."
        )
    samples = np.frombuffer(frames, "<i2").astype(np.float32) / 2**15
    return torch.from_numpy(samples), rate


def mfcc(
    sound: Tensor, *, rate: int = 16000, coefficients: int = 10, n_fft: int = 360, mels: int = 32
) -> Tensor:
    """Mel-frequency cepstral coefficients (clip, frame, coefficient) of (clip, sample).

    As the paper's code had them from `torchaudio.transforms.MFCC(log_mels=True)`: power spectrum
    under a periodic Hann window of `n_fft` samples, half a window apart, reflected at the ends;
    triangular filters on the HTK mel scale; log(1e-6 + .); orthonormal DCT-II.
    """
    window = torch.hann_window(n_fft, device=sound.device, dtype=sound.dtype)
    spectrum = torch.stft(
        sound,
        n_fft,
        n_fft // 2,
        window=window,
        center=True,
        pad_mode="reflect",
        return_complex=True,
    )
    power = spectrum.real.square() + spectrum.imag.square()
    bank = mel_filters(n_fft // 2 + 1, mels, rate).to(power)
    logs = (power.transpose(1, 2) @ bank + 1e-6).log()
    return logs @ cosine_basis(mels, coefficients).to(power)


def mel_filters(frequencies: int, mels: int, rate: int) -> Tensor:
    """Triangular filters (frequency, mel) evenly spaced in HTK mels from 0 to half the rate."""
    top = 2595.0 * math.log10(1.0 + rate / 2 / 700.0)
    corners = 700.0 * (
        10.0 ** (torch.linspace(0.0, top, mels + 2, dtype=torch.float64) / 2595.0) - 1
    )
    at = torch.linspace(0.0, rate / 2, frequencies, dtype=torch.float64)
    width = corners.diff()
    rising = (at[:, None] - corners[:-2]) / width[:-1]
    falling = (corners[2:] - at[:, None]) / width[1:]
    return torch.minimum(rising, falling).clamp(min=0.0)


def cosine_basis(size: int, coefficients: int) -> Tensor:
    """The first columns (size, coefficient) of the orthonormal DCT-II."""
    place = torch.arange(size, dtype=torch.float64)[:, None] + 0.5
    basis = torch.cos(math.pi / size * place * torch.arange(coefficients)) * math.sqrt(2.0 / size)
    basis[:, 0] /= math.sqrt(2.0)
    return basis
