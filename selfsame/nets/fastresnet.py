"""Fast ResNet-34 (Chung et al., 2020, "In defence of metric learning"), FedHide's network for VoxCeleb, group norm.

Their released network is followed where the text is silent: squeeze and excitation in every block, the last stage
without stride. The order within a block is ResNet's: convolution, norm, ReLU.
"""

from __future__ import annotations

from torch import Tensor, nn

from selfsame.errors import SelfsameError
from selfsame.nets.norm import group_norm

_STAGES = ((16, 3, 1), (32, 4, 2), (64, 6, 2), (128, 3, 1))  # channels, blocks, stride


class Squeeze(nn.Module):
    """Squeeze and excitation (Hu et al., 2018): each channel is scaled by what all channels' means say of it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down = nn.Linear(channels, channels // 8)
        self.up = nn.Linear(channels // 8, channels)

    def forward(self, x: Tensor) -> Tensor:
        scale_nC = self.up(self.down(x.mean((2, 3))).relu()).sigmoid()
        out: Tensor = x * scale_nC[:, :, None, None]
        return out


class SpeechBlock(nn.Module):
    """Two 3x3 convolutions with squeeze and excitation; the shortcut is projected where the shape changes."""

    def __init__(self, before: int, after: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.norm1 = group_norm(after, groups)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = group_norm(after, groups)
        self.squeeze = Squeeze(after)
        self.shortcut: nn.Module = nn.Identity()
        if before != after:
            project = nn.Conv2d(before, after, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(project, group_norm(after, groups))

    def forward(self, x: Tensor) -> Tensor:
        y = self.squeeze(self.norm2(self.conv2(self.norm1(self.conv1(x)).relu())))
        out: Tensor = (y + self.shortcut(x)).relu()
        return out


class AttentivePooling(nn.Module):
    """Self-attentive pooling (Cai et al., 2018): a mean over time, each frame weighed by its fit to a context."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.project = nn.Linear(channels, channels)
        self.context = nn.Linear(channels, 1, bias=False)

    def forward(self, x_nTC: Tensor) -> Tensor:
        weight_nT1 = self.context(self.project(x_nTC).tanh()).softmax(1)
        return (weight_nT1 * x_nTC).sum(1)


class FastResNet34(nn.Module):
    """ResNet-34 with a quarter of the channels, a 7x7 stem that halves the mel axis alone, attentive pooling over time.

    Samples are log-mel spectrograms (1, mels, frames). Every mel band is first standardised over time, sample by
    sample. The number of frames may change after training; `groups` is for the norms, see `group_norm`.
    """

    def __init__(self, shape: tuple[int, int, int], width: int, *, groups: int = 8) -> None:
        super().__init__()
        if shape[0] != 1 or shape[2] < 2:
            raise SelfsameError(f"needs spectrograms of shape (1, mels, at least 2 frames), got {tuple(shape)}")
        mels, first = shape[1], _STAGES[0][0]
        self.input_norm = group_norm(mels, mels, affine=False)
        self.conv = nn.Conv2d(1, first, 7, stride=(2, 1), padding=3, bias=False)
        self.norm = group_norm(first, groups)
        stages, before = [], first
        for channels, blocks, stride in _STAGES:
            layers = []
            for place in range(blocks):
                layers.append(SpeechBlock(before, channels, stride if place == 0 else 1, groups))
                before = channels
            stages.append(nn.Sequential(*layers))
        self.stages = nn.Sequential(*stages)
        self.pool = AttentivePooling(before)
        self.head = nn.Linear(before, width)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Embeddings (n, D) of spectrograms (n, 1, mels, frames)."""
        x = self.input_norm(x[:, 0])[:, None]
        x = self.stages(self.norm(self.conv(x)).relu())
        out: Tensor = self.head(self.pool(x.mean(2).transpose(1, 2)))
        return out
