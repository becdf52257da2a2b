"""MFCCs with torch alone, against librosa's parts put together the way torchaudio does."""

import warnings

import numpy as np
import pytest
import torch
from made_data import made_wav

from onlinecde.data import DataError
from onlinecde.data.audio import mfcc, read_wav


def by_librosa(sound: np.ndarray) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import librosa
        import scipy.fft

        power = librosa.feature.melspectrogram(
            y=sound, sr=16000, n_fft=360, hop_length=180, n_mels=32, window="hann", center=True,
            pad_mode="reflect", power=2.0, htk=True, norm=None,
        )  # fmt: skip
    return scipy.fft.dct(np.log(power + 1e-6), axis=0, type=2, norm="ortho")[:10].T


def test_mfccs_agree_with_librosa():
    sounds = [read_wav(made_wav(16000, seed), "made")[0] for seed in range(4)]
    ours = mfcc(torch.stack(sounds).double())
    assert ours.shape == (4, 89, 10)
    for mine, sound in zip(ours, sounds, strict=True):
        np.testing.assert_allclose(mine.numpy(), by_librosa(sound.double().numpy()), atol=1e-6)


def test_float32_is_close_to_float64():
    sound = read_wav(made_wav(16000, 2), "made")[0][None]
    torch.testing.assert_close(mfcc(sound).double(), mfcc(sound.double()), atol=5e-3, rtol=1e-3)


def test_samples_are_divided_by_two_to_the_fifteen():
    sound, rate = read_wav(made_wav(100, 1), "made")
    assert rate == 16000
    assert float(sound.abs().max()) < 1
    assert torch.equal((sound * 2**15).round(), sound * 2**15)


def test_what_is_no_wav_or_cut_short_is_refused():
    with pytest.raises(DataError, match=r"a.wav: this is not a wav file"):
        read_wav(b"RIFFnothing", "a.wav")
    with pytest.raises(DataError, match=r"a.wav: 40 of 100 samples: the file is cut short"):
        read_wav(made_wav(100, 1)[: 44 + 80], "a.wav")
