"""The images, their checksums, and the features of the network."""

import hashlib

import numpy as np
import pytest
import torch
from torchvision import datasets

from experiments import features
from experiments.data import images
from tests.experiments.tiny_runs import TRAINING, call


@pytest.mark.parametrize("dataset", images.NAMES)
def test_the_sample_holds_real_images_of_all_classes(dataset):
    data = images.Source(dataset).load()
    assert data.train.shape == (5000, 28, 28)
    assert data.test.shape == (1000, 28, 28)
    assert data.train.dtype == torch.uint8
    assert torch.bincount(data.train_labels).min() > 400
    assert torch.bincount(data.test_labels).min() > 60
    assert 30 < data.train.float().mean() < 90  # of 255: neither empty nor noise


@pytest.mark.parametrize("dataset", images.NAMES)
def test_a_corrupt_sample_is_refused(dataset, tmp_path, monkeypatch):
    content = bytearray((images.FOLDER / f"{dataset}.npz").read_bytes())
    content[1000] ^= 1
    (tmp_path / f"{dataset}.npz").write_bytes(content)
    monkeypatch.setattr(images, "FOLDER", tmp_path)
    with pytest.raises(ValueError, match=rf"{dataset}.npz is corrupt: its checksum differs"):
        images.Source(dataset).load()
    (tmp_path / f"{dataset}.npz").unlink()
    with pytest.raises(
        FileNotFoundError, match=f"{dataset}.npz is missing; it belongs to the repo"
    ):
        images.Source(dataset).load()


def write_copy(root, monkeypatch):
    """A small data set in torchvision's layout, from the sample, with its checksums noted."""
    data = images.Source("mnist").load()
    folder = root / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for part, pixels, labels in (
        ("train", data.train[:30], data.train_labels[:30]),
        ("t10k", data.test[:20], data.test_labels[:20]),
    ):
        header = np.array([2051, len(pixels), 28, 28], dtype=">i4").tobytes()
        (folder / f"{part}-images-idx3-ubyte").write_bytes(header + pixels.numpy().tobytes())
        header = np.array([2049, len(pixels)], dtype=">i4").tobytes()
        content = header + labels.byte().numpy().tobytes()
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(content)
    for path in folder.iterdir():
        monkeypatch.setitem(
            images.SUMS, f"MNIST/{path.name}", hashlib.sha256(path.read_bytes()).hexdigest()
        )
    return folder


def test_a_local_copy_is_read_and_verified(tmp_path, monkeypatch):
    folder = write_copy(tmp_path, monkeypatch)
    source = images.Source("mnist", str(tmp_path))
    sample, copy = images.Source("mnist").load(), source.load()
    assert torch.equal(copy.train, sample.train[:30])
    assert torch.equal(copy.test_labels, sample.test_labels[:20])
    assert (source.part, images.Source("mnist").part) == ("complete", "sample")
    path = folder / "t10k-labels-idx1-ubyte"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="t10k-labels-idx1-ubyte is corrupt: its checksum differs"):
        source.load()
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"data.root lacks .*t10k-labels-idx1-ubyte; data"):
        source.load()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.root={copy}", r"error: .*train-images-idx3-ubyte is corrupt: its checksum differs"),
        ("dataset=cifar", "error: dataset must be one of mnist, fashion_mnist, got 'cifar'"),
        ("n=5000", r"error: n must be in \[1, 1000\], got 5000"),
    ],
    ids=["corrupt", "dataset", "n"],
)
def test_the_features_script_refuses_bad_input(override, message, tmp_path, monkeypatch, capsys):
    path = write_copy(tmp_path, monkeypatch) / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    cache = tmp_path / "features"
    with pytest.raises(SystemExit) as end:
        call(
            features,
            override.format(copy=tmp_path),
            f"features.cache={cache}",
            f"output={tmp_path}",
        )
    assert end.value.code == 2
    with pytest.raises(ValueError, match=f"^{message}[^\n]*\n$"):
        raise ValueError(capsys.readouterr().err)
    assert not cache.exists()


def test_a_download_without_internet_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.MNIST, "mirrors", ["http://127.0.0.1:9/"])
    with pytest.raises(
        ConnectionError, match=r"cannot be downloaded .* give data.root of a local copy"
    ):
        images.Source("mnist", str(tmp_path), download=True).load()


def test_features_are_outputs_labels_and_places_of_test_images(finished, capsys):
    (path,) = (finished / "features").glob("mnist-*/features.npz")
    found = features._read(path)
    data = images.Source("mnist").load()
    assert found.outputs.shape == (40, 10)
    assert len(set(found.index.tolist())) == 40
    assert torch.equal(torch.from_numpy(found.images), data.test[found.index])
    assert found.labels.tolist() == data.test_labels[found.index].tolist()
    assert not np.allclose(found.outputs.sum(1), 1)  # before the softmax
    state = torch.load(path.parent / "network.ckpt", weights_only=True)["state_dict"]
    hidden = (
        data.test.flatten(1) / 255 @ state["layers.0.weight"].T + state["layers.0.bias"]
    ).relu()
    outputs = hidden @ state["layers.2.weight"].T + state["layers.2.bias"]
    torch.testing.assert_close(torch.from_numpy(found.outputs), outputs[found.index])
    accuracy = (outputs.argmax(1) == data.test_labels).double().mean().item()
    assert found.accuracy == pytest.approx(accuracy)
    assert accuracy > 0.5  # after one epoch with 8 hidden units
    call(features, "n=40", *TRAINING, f"features.cache={finished}/features", f"output={finished}")
    assert (
        f"test accuracy {accuracy:.4f}, features of 40 images in {path}" in capsys.readouterr().out
    )


def test_corrupt_features_are_refused(tmp_path):
    path = tmp_path / "features.npz"
    path.write_bytes(b"PK half a file")
    with pytest.raises(ValueError, match=r"features.npz is corrupt; delete it to train again"):
        features._read(path)
