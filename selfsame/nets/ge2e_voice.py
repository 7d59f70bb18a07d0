"""The voice encoder of GE2E (Wan et al., 2018): three LSTM layers over mel bands of 1.6 seconds, 256 dimensions.

As Resemblyzer publishes it: 40 bands of mel power, without a logarithm, at 16,000 samples a second, windows of 25 ms
every 10 ms. What stands before the layers is part of the network: resampling, loudness, silence, mel bands. A longer
recording is heard in parts that overlap by about a half, whose embeddings are averaged.

With `states`, for embeddings to be whitened, a part is not what the last layer makes of its last frame. It is h / |h|
with h the mean of the LSTM's states over time, and beside it the logarithms l of the lowest bands' power: for band k
0.1 (mean of l + 5.8 + 0.18 k) and 0.1 (deviation of l - 2), which are near 0 for speech and of the size of the states.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from selfsame.errors import SelfsameError
from selfsame.nets.mel import fourier
from selfsame.nets.resample import Resampled

RATE, BANDS, HIDDEN, LAYERS = 16000, 40, 256, 3
_WINDOW, _HOP = 400, 160  # samples
_PART, _STEP = 160, 77  # frames of a part, and between the beginnings of two: 1.3 parts a second
_ENOUGH = _PART * _HOP * 3 // 4  # samples of a further part that must be there
_LOUD, _LOUDER = -30, -25  # dB below full scale that quiet recordings are brought to, as published, and for states
_SILENT = 1e-4  # the share of the loudest frame's power from which a frame counts as sound: 40 dB
_TINY = 1e-8
_FAINT = 1e-6  # power that is added before the logarithm
_LEVEL, _SLOPE, _SPREAD, _SIZE = -5.8, -0.18, 2.0, 0.1  # of logarithms of speech, roughly, and what they count


def slaney_edges(bands: int, top: float) -> list[float]:
    """Frequencies of the triangles' corners, evenly spaced in Slaney's mel: straight to 1,000 Hz, then logarithmic."""
    bend, per, step = 1000.0, 3 / 200, math.log(6.4) / 27  # Hz, mel a Hz below, logarithm a mel above
    last = bend * per + math.log(top / bend) / step
    mels = [last * place / (bands + 1) for place in range(bands + 2)]
    return [mel / per if mel < bend * per else bend * math.exp(step * (mel - bend * per)) for mel in mels]


def slaney_filters(rate: int, bins: int, bands: int, like: Tensor) -> Tensor:
    """Weights (bins, bands) of triangles that each have the area 1 (in Hz), from 0 to rate / 2."""
    edge_E = torch.cat([like.new_full((1,), hertz) for hertz in slaney_edges(bands, rate / 2)])
    hertz_F1 = torch.arange(bins, device=like.device).to(like.dtype)[:, None] * (rate / 2 / (bins - 1))
    low_K, peak_K, high_K = edge_E[:-2], edge_E[1:-1], edge_E[2:]
    rise_FK, fall_FK = (hertz_F1 - low_K) / (peak_K - low_K), (high_K - hertz_F1) / (high_K - peak_K)
    return torch.minimum(rise_FK, fall_FK).clamp(min=0) * (2 / (high_K - low_K))


class VoiceFront(nn.Module):
    """Raw audio (n, 1, samples), full scale 1, to frames of mel power in parts (n, parts, frames, bands).

    Quiet recordings are made louder. With `trim`, frames 40 dB below the loudest are left out, the others move up, and
    silence follows them.
    """

    def __init__(self, rate: int, samples: int, trim: bool, loud: float = _LOUD) -> None:
        super().__init__()
        self.resampled, self.trim, self.loud = Resampled(rate, RATE), trim, loud
        self.samples = self.resampled.samples(samples)
        if self.samples <= _WINDOW // 2:
            raise SelfsameError(f"recordings of {samples} samples are too short, more than {_WINDOW // 2} are needed")
        self.starts = part_starts(self.samples)
        self.part = min(_PART, 1 + self.samples // _HOP)  # frames: a short recording is heard as it is

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            x = x if x.dtype == torch.float64 else x.float()
            wave_S = _louder(self.resampled(x[:, 0]), self.loud)
            frame_TK = self._bands(wave_S)
            if self.trim:
                frame_TK = voiced_first(frame_TK)
            lacks = self.starts[-1] + self.part - frame_TK.shape[1]
            frame_TK = F.pad(frame_TK, (0, 0, 0, lacks)) if lacks > 0 else frame_TK
            return torch.stack([frame_TK[:, start : start + self.part] for start in self.starts], 1)

    def _bands(self, wave_S: Tensor) -> Tensor:
        """Mel power (n, frames, bands), one frame at every hop, the first in the middle of the first window."""
        half = _WINDOW // 2
        wave_S = F.pad(wave_S[:, None], (half, half), mode="reflect")[:, 0]
        frame_TW = wave_S.unfold(-1, _WINDOW, _HOP)
        cos_TF, sin_TF = (frame_TW @ fourier(_WINDOW, _WINDOW, wave_S, middle=0.5)).chunk(2, -1)
        return (cos_TF.square() + sin_TF.square()) @ slaney_filters(RATE, half + 1, BANDS, wave_S)


def part_starts(samples: int) -> list[int]:
    """The first frames of a recording's parts: one at every step of which enough is sound, and the first always."""
    last = (samples - _ENOUGH) // _HOP
    return [0, *range(_STEP, last + 1, _STEP)]


def _louder(wave_S: Tensor, loud: float = _LOUD) -> Tensor:
    """Quiet recordings at the loudness that the encoder expects, others as they are; silence stays silence."""
    power_1 = wave_S.square().mean(-1, keepdim=True)
    # At least, not plus: PyTorch's exporter takes the sum with so small a number for the other term.
    return wave_S * (10 ** (loud / 20) / power_1.clamp(min=_TINY).sqrt()).clamp(min=1)


def voiced_first(frame_TK: Tensor) -> Tensor:
    """Frames that are loud enough, in their order and without gaps; zeros behind them."""
    power_T = frame_TK.detach().sum(-1)
    kept_T = (power_T >= _SILENT * power_T.amax(-1, keepdim=True)).to(frame_TK.dtype)
    count = frame_TK.shape[1]
    number_T = torch.arange(count, device=frame_TK.device)
    before_TT = (number_T[:, None] <= number_T).to(frame_TK.dtype)
    place_T = kept_T @ before_TT - 1  # of each kept frame among the kept; whole numbers, exact
    moves_PT = ((place_T[:, None] - number_T[:, None].to(frame_TK.dtype)).abs() < 0.5).to(frame_TK.dtype)
    return (moves_PT * kept_T[:, None]) @ frame_TK


def spectrum(frame_TK: Tensor, bands: int) -> Tensor:
    """The logarithms of the lowest bands' power: means, then deviations over time (n, 2 bands)."""
    log_TK = (frame_TK[..., :bands] + _FAINT).log()
    mean_K = log_TK.mean(-2)
    deviation_K = ((log_TK - mean_K[..., None, :]).square().mean(-2) + _FAINT).sqrt()
    line_K = _LEVEL + _SLOPE * torch.arange(bands, device=frame_TK.device).to(frame_TK.dtype)
    return _SIZE * torch.cat([mean_K - line_K, deviation_K - _SPREAD], -1)


class GE2EVoice(nn.Module):
    """Recordings (n, 1, samples), full scale 1, to embeddings (n, D): the mean over the parts, at unit length.

    `rate` is that of the recordings; `trim` leaves silence out. With `signed` the last ReLU is left out. With `states`
    an embedding is the mean of the LSTM's states over time, 256 wide, and beside it the spectrum of as many bands as a
    larger `width` has room for: 320 holds 32, up to 4 kHz. Both help where the embeddings are whitened, and nowhere
    else.
    """

    full_scale: ClassVar[bool] = True
    own_width: ClassVar[int] = HIDDEN

    def __init__(
        self,
        shape: tuple[int, int],
        width: int,
        *,
        rate: int = RATE,
        trim: bool = False,
        signed: bool = False,
        states: bool = False,
    ) -> None:
        super().__init__()
        if shape[0] != 1:
            raise SelfsameError(f"recordings have 1 channel, got {shape[0]}")
        self.signed, self.states, self.beside = signed, states, (width - HIDDEN) // 2
        self.front = VoiceFront(rate, shape[1], trim, _LOUDER if states else _LOUD)
        self.lstm = nn.LSTM(BANDS, HIDDEN, LAYERS, batch_first=True)
        if not states:
            self.linear = nn.Linear(HIDDEN, width)
        elif width not in range(HIDDEN, HIDDEN + 2 * BANDS + 1, 2):
            raise SelfsameError(
                f"states: net.width must be {HIDDEN}, or up to {HIDDEN + 2 * BANDS} with two more for every band "
                f"beside the states, got {width}"
            )
        elif trim or signed:
            raise SelfsameError("states: has no last layer to be signed, and hears silence; leave signed and trim out")

    @property
    def unused(self) -> tuple[str, ...]:
        """The published tensors that this has no place for, by pattern."""
        return ("linear.*",) if self.states else ()

    def forward(self, x: Tensor) -> Tensor:
        """Embeddings (n, D)."""
        parts = len(self.front.starts)
        heard_NTK = self.front(x).flatten(0, 1)
        state_NTH = self.lstm(heard_NTK)[0]
        each_ND = self._pooled(state_NTH, heard_NTK) if self.states else self._last(state_NTH[:, -1])
        return F.normalize(each_ND.unflatten(0, (-1, parts)).mean(1), dim=-1)

    def _last(self, last_NH: Tensor) -> Tensor:
        last_ND = self.linear(last_NH)
        return F.normalize(last_ND if self.signed else last_ND.relu(), dim=-1)

    def _pooled(self, state_NTH: Tensor, heard_NTK: Tensor) -> Tensor:
        mean_NH = F.normalize(state_NTH.mean(1), dim=-1)
        if not self.beside:
            return mean_NH
        with torch.autocast(heard_NTK.device.type, enabled=False):
            return torch.cat([mean_NH.to(heard_NTK.dtype), spectrum(heard_NTK, self.beside)], -1)
