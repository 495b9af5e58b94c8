"""The data sets of the experiments as tensors, read from their published formats and checked."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from spidersilk.lab.data.files import DataError, File, files_like, locate, read


def image_files(name: str, train_samples: int | None = None, data_dir: Path | str | None = None) -> list[File]:
    """The files from which a data set of `sets.IMAGES` is read, those for training first; none for embedded data.

    For `train_samples`, fewer of CIFAR-10's files may do. SVHN is the re-cropped subset if only that is available.
    """
    if name == "cifar10":
        *train, test = files_like("cifar10/*")
        return [*train[: -(-(train_samples or 50_000) // 10_000)], test]
    return _first_available(data_dir, "svhn/*.mat", "svhn/*.npy") if name == "svhn" else files_like(f"{name}/*")


def ratings_file(size: str, data_dir: Path | str | None = None) -> File:
    """MovieLens "100k" or "1m"; of the latter, the ratings without timestamps if only those are available."""
    if size == "100k":
        return files_like("*/ml-100k/*")[0]
    return _first_available(data_dir, "*/ratings.dat", "*/ratings_no_timestamp.dat")[0]


def _first_available(data_dir: Path | str | None, *patterns: str) -> list[File]:
    """The files of the first pattern of which one is available; without any, those of the first pattern."""
    groups = [files_like(pattern) for pattern in patterns]
    return next((group for group in groups if any(locate(file, data_dir) for file in group)), groups[0])


@dataclass(frozen=True)
class Images:
    """Pixels as uint8, N x 3 x H x W, and labels from 0; `name` says what a report must call it."""

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


def mnist(data_dir: Path | str | None = None, train_samples: int | None = None) -> Images:
    """MNIST as 3 x 32 x 32: the digit in the middle, the same in all three channels."""
    parts, files = [], image_files("mnist")
    for images, labels in zip(files[::2], files[1::2], strict=True):
        pixels = np.frombuffer(read(images, data_dir), np.uint8, offset=16).reshape(-1, 28, 28)
        padded = torch.from_numpy(np.pad(pixels, ((0, 0), (2, 2), (2, 2))))
        parts += [padded[:, None].expand(-1, 3, -1, -1).contiguous()]
        parts += [_labels(np.frombuffer(read(labels, data_dir), np.uint8, offset=8))]
    return Images("MNIST", *parts)


def cifar10(data_dir: Path | str | None = None, train_samples: int | None = None) -> Images:
    """CIFAR-10; only as many of the five training files are read as hold `train_samples`."""
    contents = [read(file, data_dir) for file in image_files("cifar10", train_samples)]
    parts = []
    for content in (b"".join(contents[:-1]), contents[-1]):
        part = np.frombuffer(content, np.uint8).reshape(-1, 3073)
        parts += [torch.from_numpy(part[:, 1:].reshape(-1, 3, 32, 32).copy()), _labels(part[:, 0])]
    return Images("CIFAR-10", *parts)


def svhn(data_dir: Path | str | None = None, train_samples: int | None = None) -> Images:
    """The published .mat files, or the re-cropped subset if only that is available; `name` says which."""
    files = image_files("svhn", data_dir=data_dir)
    contents = [read(file, data_dir) for file in files]
    if len(files) == 2:
        return Images("SVHN", *svhn_mat(contents[0], files[0].path), *svhn_mat(contents[1], files[1].path))
    arrays = [np.load(io.BytesIO(content), allow_pickle=False) for content in contents]
    parts = []
    for pixels, labels in zip(arrays[::2], arrays[1::2], strict=True):
        parts += [torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(), _labels(labels) % 10]
    return Images("SVHN, re-cropped, 18k train subset", *parts)


def svhn_mat(content: bytes, name: str) -> tuple[Tensor, Tensor]:
    """X is 32 x 32 x 3 x N; y is N x 1, with 10 for the digit 0."""
    from scipy.io import loadmat

    try:
        arrays = loadmat(io.BytesIO(content))
        pixels, labels = arrays["X"], arrays["y"].reshape(-1)
    except Exception as error:
        raise DataError(f"{name}: not a .mat file with X and y ({error}): get it again") from error
    if pixels.shape != (32, 32, 3, len(labels)) or pixels.dtype != np.uint8:
        raise DataError(f"{name}: X is {pixels.shape} and y {labels.shape}, not 32 x 32 x 3 x N bytes and N labels")
    return torch.from_numpy(pixels.transpose(3, 2, 0, 1).copy()), _labels(labels) % 10


def digits(data_dir: Path | str | None = None, train_samples: int | None = None) -> Images:
    """scikit-learn's embedded 8 x 8 digits, enlarged four times: 1437 for training and 360 for testing."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    x = torch.from_numpy(np.round(pixels * 255 / 16).astype(np.uint8)).view(-1, 1, 8, 8)
    x = x.repeat_interleave(4, 2).repeat_interleave(4, 3).expand(-1, 3, -1, -1).contiguous()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    y, train, test = _labels(labels), order[:1437], order[1437:]
    return Images("digits", x[train], y[train], x[test], y[test])


def _labels(numbers: np.ndarray) -> Tensor:
    return torch.from_numpy(numbers.astype(np.int64))


# The runs of one process share these tensors; no run writes to them.
IMAGES = {reader.__name__: lru_cache(maxsize=2)(reader) for reader in (mnist, cifar10, svhn, digits)}


def ptb(data_dir: Path | str | None = None, vocabulary: int = 10_000) -> tuple[dict[str, Tensor], list[str]]:
    """Token numbers of train, valid and test, with <eos> after each line, and the frequent words: others are <unk>."""
    texts = [read(file, data_dir).decode().replace("\n", " <eos> ").split() for file in files_like("ptb/*")]
    return number_tokens(dict(zip(("train", "valid", "test"), texts, strict=True)), vocabulary)


def number_tokens(texts: dict[str, list[str]], vocabulary: int) -> tuple[dict[str, Tensor], list[str]]:
    counts = Counter(texts["train"])
    words = sorted(counts, key=lambda word: (-counts[word], word))[:vocabulary]
    numbers = {word: number for number, word in enumerate(words)}
    if "<unk>" not in numbers:  # one of the most frequent words
        raise ValueError(f"vocabulary = {vocabulary} leaves out <unk>, which stands for rare words: raise it")
    unknown = numbers["<unk>"]
    return {part: torch.tensor([numbers.get(w, unknown) for w in text]) for part, text in texts.items()}, words


def movielens(size: str = "100k", data_dir: Path | str | None = None) -> tuple[Tensor, int, int]:
    """User and item of every rating (implicit feedback), numbered from 0; the counts of users and items."""
    file = ratings_file(size, data_dir)
    separator, expected = ("\t", 100_000) if size == "100k" else ("::", 1_000_209)
    rows = [line.split(separator)[:2] for line in read(file, data_dir).decode("latin-1").splitlines() if line]
    try:
        pairs = torch.tensor([[int(user), int(item)] for user, item in rows])
    except ValueError as error:
        raise DataError(f"{file.path}: a line without a user and an item ({error}): get it again") from error
    if len(pairs) != expected:
        raise DataError(f"{file.path}: {len(pairs):,} ratings, not {expected:,}: it is cut short or altered")
    users, items = (torch.unique(pairs[:, i], return_inverse=True) for i in (0, 1))
    return torch.stack([users[1], items[1]], dim=1), len(users[0]), len(items[0])


LIBSVM = {"a9a": (32_561, 123), "w8a": (49_749, 300)}  # the numbers of samples and of features
BINARY = ("breast-cancer", "digits", "mnist", *LIBSVM)


def binary(name: str, data_dir: Path | str | None = None) -> tuple[Tensor, Tensor]:
    """Features (rows normalised, float64) and labels in {-1, 1} for logistic regression."""
    if name == "breast-cancer":
        from sklearn.datasets import load_breast_cancer

        features, labels = load_breast_cancer(return_X_y=True)
        x = torch.from_numpy(features)
        x = (x - x.mean(0)) / x.std(0)
        y = torch.from_numpy(labels).double() * 2 - 1
    elif name in ("digits", "mnist"):
        images = IMAGES[name](data_dir)
        pixels = images.train_x[:, 0] if name == "mnist" else images.train_x[:, 0, ::4, ::4]
        x = pixels.flatten(1).double() / 255
        y = 1.0 - 2.0 * (images.train_y % 2)
    else:
        x, y = _libsvm(name, data_dir)
    return x / x.norm(dim=1, keepdim=True).clamp(min=1e-12), y.double()


def _libsvm(name: str, data_dir: Path | str | None) -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_svmlight_file

    (file,), (samples, features) = files_like(f"{name}/*"), LIBSVM[name]
    try:
        matrix, labels = load_svmlight_file(io.BytesIO(read(file, data_dir)), n_features=features)[:2]
    except ValueError as error:
        raise DataError(f"{file.path}: not LIBSVM text with {features} features ({error}): get it again") from error
    if matrix.shape[0] != samples or not set(np.unique(labels)) <= {-1.0, 1.0}:
        found = f"{matrix.shape[0]:,} rows, not {samples:,} of labels -1 and 1"
        raise DataError(f"{file.path}: {found}: cut short or altered")
    return torch.from_numpy(matrix.toarray()), torch.from_numpy(labels)
