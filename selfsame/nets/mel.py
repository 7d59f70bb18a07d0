"""Log mel filterbanks as a layer, so that a network takes raw audio, on the device as in training.

As FedHide's baseline computes them (Chung et al., 2020, Fast ResNet-34): power spectrum of Hamming windows centred on
every hop, the signal mirrored at both ends, triangles on the mel scale, no pre-emphasis. The transform is a product
with a table of cosines and sines: plain operations, which every exporter knows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from selfsame.errors import SelfsameError
from selfsame.nets.fastresnet import FastResNet34
from selfsame.nets.lenet import LeNet
from selfsame.nets.norm import group_norm

_FLOOR = 1e-6  # added before the logarithm, as the baseline does: silence is log 1e-6


def mel_filters(rate: int, bins: int, mels: int, like: Tensor) -> Tensor:
    """Weights (bins, mels) of triangles of height 1 that overlap by half, evenly spaced in mel = 2595 log10(1 + f/700).

    They reach from 0 to rate / 2, as do the `bins` frequencies.
    """
    top = math.log1p(rate / 2 / 700)
    edge_E = 700 * (torch.arange(mels + 2, device=like.device).to(like.dtype) * (top / (mels + 1))).expm1()
    hertz_F1 = torch.arange(bins, device=like.device).to(like.dtype)[:, None] * (rate / 2 / (bins - 1))
    low_K, peak_K, high_K = edge_E[:-2], edge_E[1:-1], edge_E[2:]
    rise_FK, fall_FK = (hertz_F1 - low_K) / (peak_K - low_K), (high_K - hertz_F1) / (high_K - peak_K)
    return torch.minimum(rise_FK, fall_FK).clamp(min=0)


def fourier(window: int, size: int, like: Tensor, middle: float = 0.54) -> Tensor:
    """Cosines, then sines (window, size + 2) of the Fourier transform of an even `size`, under a raised cosine.

    `middle` is the mean of that: 0.54 makes it Hamming's window, 0.5 Hann's.
    """
    place_W1 = torch.arange(window, device=like.device)[:, None]
    raised_W1 = middle - (1 - middle) * (place_W1.to(like.dtype) * (2 * math.pi / window)).cos()
    # Reduced while it is a whole number: a large angle would lose digits.
    turn_WF = place_W1 * torch.arange(size // 2 + 1, device=like.device) % size
    angle_WF = turn_WF.to(like.dtype) * (2 * math.pi / size)
    return raised_W1 * torch.cat([angle_WF.cos(), angle_WF.sin()], 1)


class LogMel(nn.Module):
    """Raw audio (n, samples) or (n, 1, samples) to log mel filterbanks (n, 1, mels, frames).

    `window` and `hop` are in seconds. It keeps no tables: an engine holds nothing of a network but its parameters, and
    computing them takes less than a hundredth of the time that the network behind takes.
    """

    def __init__(self, rate: int, mels: int = 40, window: float = 0.025, hop: float = 0.010) -> None:
        super().__init__()
        self.rate, self.mels = rate, mels
        self.window, self.hop = round(rate * window), round(rate * hop)  # in samples from here on
        if rate < 1 or mels < 1 or self.window < 2 or self.hop < 1:
            raise SelfsameError(f"mel: {mels} filters, window {window} s and hop {hop} s do not fit {rate} samples/s")
        self.size = 1 << (self.window - 1).bit_length()
        self.before = self.size // 2 - (self.size - self.window) // 2  # samples of a window before its centre
        if not bool(mel_filters(rate, self.size // 2 + 1, mels, torch.ones(1, device="cpu")).any(0).all()):
            raise SelfsameError(
                f"mel: {mels} filters are too many for windows of {self.window} samples: some would be empty"
            )

    def frames(self, samples: int) -> int:
        """How many frames that many samples give: one at every hop, the first at the first sample."""
        return 1 + samples // self.hop

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() not in (2, 3) or (x.dim() == 3 and x.shape[1] != 1) or x.shape[-1] <= self.before:
            raise SelfsameError(f"mel: needs audio (n, 1, more than {self.before} samples), got {tuple(x.shape)}")
        x = x if x.dim() == 3 else x[:, None]
        # Half precision would drown the quiet frequencies of a frame in the rounding of its loud ones.
        with torch.autocast(x.device.type, enabled=False):
            x = x if x.dtype == torch.float64 else x.float()
            wave_S = nn.functional.pad(x, (self.before, self.window - self.before), mode="reflect")
            frame_TW = wave_S.unfold(-1, self.window, self.hop)
            cos_TF, sin_TF = (frame_TW @ fourier(self.window, self.size, x)).chunk(2, -1)
            power_TF = cos_TF.square() + sin_TF.square()
            return (power_TF @ mel_filters(self.rate, self.size // 2 + 1, self.mels, x) + _FLOOR).log().mT


class WithMel(nn.Module):
    """A network of log mel filterbanks (n, 1, mels, frames) that takes raw audio."""

    def __init__(self, front: LogMel, net: nn.Module) -> None:
        super().__init__()
        self.front, self.net = front, net

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(self.front(x))
        return out


def mel_lenet(
    shape: tuple[int, int], width: int, *, rate: int = 16000, mels: int = 40, channels: tuple[int, ...] = (8, 16)
) -> WithMel:
    """LeNet for recordings (1, samples) of one length: a network that a CPU trains in minutes.

    Each spectrogram is brought to mean 0 and deviation 1 as a whole, which takes off its loudness and leaves its shape.
    `rate` in samples per second, `mels` bands, `channels` of the two convolutions.
    """
    front = LogMel(rate, mels)
    net = LeNet((shape[0], mels, front.frames(shape[1])), width, channels=channels)
    return WithMel(front, nn.Sequential(group_norm(1, 1, affine=False), net))


def mel_resnet34(shape: tuple[int, int], width: int, *, rate: int = 16000, mels: int = 40, groups: int = 8) -> WithMel:
    """Fast ResNet-34 for recordings (1, samples) at `rate` samples per second, as FedHide trains it on VoxCeleb.

    `mels` bands; `groups` of each norm.
    """
    front = LogMel(rate, mels)
    return WithMel(front, FastResNet34((shape[0], mels, front.frames(shape[1])), width, groups=groups))
