"""The lab's data: found, checked, refused when it is not whole."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import lzma
import math
import tarfile
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("typer", reason="needs the extra [lab]")

from spidersilk.lab.data import files
from spidersilk.lab.data import sets as data
from spidersilk.lab.data.files import DataError, File
from spidersilk.lab.tasks.models import MODELS

CONTENT = b"some lines\n" * 1000
PLAIN = File("set/part.txt", hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture(autouse=True)
def no_user_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "cache_folder", lambda: tmp_path / "cache" / "data")


def put(folder: Path, name: str, content: bytes) -> Path:
    path = folder / "set" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(("suffix", "pack"), [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)])
def test_every_form_is_read(tmp_path: Path, suffix: str, pack) -> None:
    put(tmp_path, "part.txt" + suffix, pack(CONTENT))
    assert files.read(PLAIN, tmp_path) == CONTENT


def test_folders_are_searched_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "env", "part.txt", CONTENT)
    put(tmp_path / "cache" / "data", "part.txt", b"altered")
    monkeypatch.setenv("SPIDERSILK_DATA", str(tmp_path / "env"))
    assert files.read(PLAIN) == CONTENT
    assert files.locate(PLAIN, None) == tmp_path / "env" / "set" / "part.txt"
    put(tmp_path / "given", "part.txt", b"altered too")
    with pytest.raises(DataError, match=r"given/set/part.txt: .*SHA-256 differs"):
        files.read(PLAIN, tmp_path / "given")


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_a_truncated_archive_is_refused(tmp_path: Path, suffix: str, pack) -> None:
    put(tmp_path, "part.txt" + suffix, pack(CONTENT)[:-20])
    with pytest.raises(DataError, match=rf"part.txt\{suffix}: not a whole .* get it again"):
        files.read(PLAIN, tmp_path)


def test_a_flipped_byte_and_a_cut_are_refused(tmp_path: Path) -> None:
    put(tmp_path, "part.txt", CONTENT[:500] + b"X" + CONTENT[501:])
    with pytest.raises(DataError, match="SHA-256 differs"):
        files.read(PLAIN, tmp_path)
    put(tmp_path, "part.txt", CONTENT[:-1])
    with pytest.raises(DataError, match="10,999 bytes"):
        files.read(PLAIN, tmp_path)


def test_a_missing_file_says_where_it_was_looked_for_and_how_to_get_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("SPIDERSILK_DATA", str(tmp_path / "env"))
    with pytest.raises(DataError) as caught:
        files.read(File("set/part.txt", None, "http://127.0.0.1:9/part.txt"), tmp_path / "given")
    told = str(caught.value)
    for words in (
        "given/set/part.txt",
        "env/set/part.txt",
        "cache/data/set/part.txt",
        "127.0.0.1:9",
        "SPIDERSILK_DATA",
    ):
        assert words in told


@pytest.fixture
def server(tmp_path: Path):
    """A web server on loopback over tmp_path / "web"; its address."""
    (tmp_path / "web").mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args, **options):
            super().__init__(*args, directory=str(tmp_path / "web"), **options)

        def log_message(self, *_args) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}/"
        running.shutdown()


def test_what_is_missing_is_downloaded_checked_and_kept(tmp_path: Path, server: str) -> None:
    (tmp_path / "web" / "part.txt").write_bytes(CONTENT)
    file = File("set/part.txt", PLAIN.sha256, server + "part.txt")
    assert files.read(file) == CONTENT
    assert (tmp_path / "cache" / "data" / "set" / "part.txt").read_bytes() == CONTENT
    (tmp_path / "web" / "part.txt").unlink()
    assert files.read(file) == CONTENT  # from the cache
    (tmp_path / "web" / "pressed.txt.gz").write_bytes(gzip.compress(CONTENT))
    assert files.read(File("set/pressed.txt", PLAIN.sha256, server + "pressed.txt.gz")) == CONTENT
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("in/other.txt", CONTENT)
        archive.writestr("in/more.txt", CONTENT)
    (tmp_path / "web" / "all.zip").write_bytes(packed.getvalue())
    digest = "md5:" + hashlib.md5(packed.getvalue()).hexdigest()
    assert files.read(File("set/other.txt", None, server + "all.zip", "in/other.txt", digest)) == CONTENT
    (tmp_path / "web" / "all.zip").unlink()
    assert files.read(File("set/more.txt", None, server + "all.zip", "in/more.txt", digest)) == CONTENT


def test_a_wrong_download_is_refused_and_not_kept(tmp_path: Path, server: str) -> None:
    (tmp_path / "web" / "part.txt").write_bytes(b"something else")
    with pytest.raises(DataError, match="what came is not the published file"):
        files.read(File("set/part.txt", PLAIN.sha256, server + "part.txt"))
    assert not (tmp_path / "cache" / "data" / "set").exists()
    (tmp_path / "web" / "more.txt").write_bytes(CONTENT)
    with pytest.raises(DataError, match="nor to be had now"):
        files.read(File("set/more.txt", None, server + "more.txt", None, "md5:" + "0" * 32))


def test_an_unreadable_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path, "part.txt", CONTENT)

    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)  # root may read everything, so the refusal is made here
    with pytest.raises(DataError, match=rf"{path}: cannot be read \(Permission denied\)"):
        files.read(PLAIN, tmp_path)
    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(DataError, match="cannot be looked at"):
        files.read(PLAIN, tmp_path)


def test_archives_are_read_by_member_and_write_nowhere(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name in ("../../evil.txt", "good.txt"):
            entry = tarfile.TarInfo(name)
            entry.size = 4
            tar.addfile(entry, io.BytesIO(b"text"))
        link = tarfile.TarInfo("link.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    assert files.extract(packed.getvalue(), "good.txt", "a.tar.gz") == b"text"
    with pytest.raises(DataError, match="not a plain file"):
        files.extract(packed.getvalue(), "link.txt", "a.tar.gz")
    with pytest.raises(DataError, match=r"absent\.txt is not to be had"):
        files.extract(packed.getvalue(), "absent.txt", "a.tar.gz")
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("../evil.txt", "text")
        archive.writestr("in/good.txt", "text")
    assert files.extract(zipped.getvalue(), "in/good.txt", "a.zip") == b"text"
    with pytest.raises(DataError):
        files.extract(b"nothing of the kind", "x", "a.zip")
    assert not list(tmp_path.rglob("evil*"))


def test_svhn_mat_structure() -> None:
    from scipy.io import savemat

    def packed(**held: np.ndarray) -> bytes:
        stream = io.BytesIO()
        savemat(stream, held)
        return stream.getvalue()

    pixels = np.arange(32 * 32 * 3 * 5, dtype=np.uint32).astype(np.uint8).reshape(32, 32, 3, 5)
    x, y = data.svhn_mat(packed(X=pixels, y=np.array([[1], [10], [3], [9], [2]], np.uint8)), "m")
    assert x.shape == (5, 3, 32, 32)
    assert y.tolist() == [1, 0, 3, 9, 2]
    assert int(x[3, 2, 7, 11]) == int(pixels[7, 11, 2, 3])
    wrong = np.zeros((3, 32, 32, 5), np.uint8)
    for bad in (
        packed(X=wrong, y=np.ones((5, 1))),
        packed(X=pixels, y=np.ones((4, 1))),
        packed(X=pixels),
        b"no mat file",
    ):
        with pytest.raises(DataError):
            data.svhn_mat(bad, "m")


@pytest.mark.parametrize(("name", "most"), [("fc", 18.234), ("cnn", 15.920), ("resnet18", 23.414)])
def test_parameter_counts_give_the_papers_maxima(name: str, most: float) -> None:
    make, parameters = MODELS[name]
    assert sum(p.numel() for p in make().parameters()) == parameters
    assert round(math.log2(parameters), 3) == most
    assert make()(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_vocabulary_is_cut_by_frequency() -> None:
    texts = {"train": ["a", "a", "a", "b", "b", "<unk>", "c", "d"], "valid": ["a", "d", "e"]}
    numbers, words = data.number_tokens(texts, 3)
    assert words == ["a", "b", "<unk>"]
    assert numbers["train"].tolist() == [0, 0, 0, 1, 1, 2, 2, 2]
    assert numbers["valid"].tolist() == [0, 2, 2]
    assert data.number_tokens(texts, 100)[1] == ["a", "b", "<unk>", "c", "d"]


def test_embedded_data_needs_no_files() -> None:
    images = data.digits()
    assert images.train_x.shape == (1437, 3, 32, 32)
    assert images.train_x.dtype == torch.uint8
    x, y = data.binary("breast-cancer")
    torch.testing.assert_close(x.norm(dim=1), torch.ones(569, dtype=torch.float64))
    assert set(y.tolist()) == {-1.0, 1.0}


@pytest.mark.slow
def test_the_real_data_sets(data_dir: str) -> None:
    mnist = data.mnist(data_dir)
    assert mnist.train_x.shape == (60_000, 3, 32, 32)
    assert mnist.test_y.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    cifar = data.cifar10(data_dir, train_samples=10_000)
    assert cifar.train_x.shape == (10_000, 3, 32, 32)
    assert cifar.test_y.bincount().tolist() == [1000] * 10
    texts, words = data.ptb(data_dir)
    assert {part: len(text) for part, text in texts.items()} == {"train": 929_589, "valid": 73_760, "test": 82_430}
    assert len(words) == 10_000
    pairs, users, items = data.movielens("100k", data_dir)
    assert (len(pairs), users, items) == (100_000, 943, 1682)
    x, y = data.binary("a9a", data_dir)
    assert x.shape == (32_561, 123)
    assert int((y > 0).sum()) == 7841
