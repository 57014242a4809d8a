"""Images and other files: kind, size and hash in their place, made when they are written."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from otel_rollout import media, snapshot
from otel_rollout.snapshot import settled, take

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 64


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


class TestText:
    """Base64 goes wherever in a text it stands; the rest of the text stays."""

    def test_a_data_url(self) -> None:
        url = f"data:image/png;base64,{encoded(PNG)}"
        said = f"data:image/png;base64,… ({len(PNG)} bytes cut, sha256 {sha256(PNG)})"
        message = {"type": "image_url", "image_url": {"url": url}}
        assert settled(message)["image_url"]["url"] == said

    def test_parameters_of_a_data_url_stay(self) -> None:
        url = f"data:text/plain;charset=utf-8;base64,{encoded(b'x' * 2000)}"
        assert settled(url).startswith("data:text/plain;charset=utf-8;base64,… (2000 bytes cut")

    def test_one_inside_other_text(self) -> None:
        text = f"see ![this](data:image/png;base64,{encoded(PNG)}) and é"
        shown = settled(text)
        assert shown.startswith("see ![this](data:image/png;base64,… (")
        assert shown.endswith(f"sha256 {sha256(PNG)})) and é")

    def test_one_inside_json(self) -> None:
        text = json.dumps([{"image": f"data:image/png;base64,{encoded(PNG)}"}] * 2)
        for part in json.loads(settled(text)):
            assert sha256(PNG) in part["image"]

    @pytest.mark.parametrize(
        ("start", "kind"),
        [
            (PNG[:12], "image/png"),
            (b"\xff\xd8\xff\xe0", "image/jpeg"),
            (b"GIF89a", "image/gif"),
            (b"RIFF\x00\x00\x00\x00WAVE", "audio/wav"),
            (b"RIFF\x00\x00\x00\x00WEBP", "image/webp"),
            (b"%PDF-1.7", "application/pdf"),
        ],
    )
    def test_base64_without_a_url_is_told_by_its_first_bytes(self, start: bytes, kind: str) -> None:
        data = start + os.urandom(3000)
        part = settled({"source": {"media_type": "?", "data": encoded(data)}})["source"]["data"]
        assert part == f"{kind};base64,… ({len(data)} bytes cut, sha256 {sha256(data)})"

    @pytest.mark.parametrize(
        "text",
        [
            "data:image/png;base64,AAAA",
            "/9j/ " + "is no picture " * 200,
            "x" * 5000,
            "the text ;base64, alone " * 100,
            "data:;base64," * 500,
        ],
    )
    def test_other_text_stays_as_it_is(self, text: str) -> None:
        assert settled(text) == text

    def test_what_is_no_base64_after_all_is_cut_as_well(self) -> None:
        text = "data:image/png;base64," + "A" * 2001  # no length that base64 has
        assert settled(text).startswith("data:image/png;base64,… (2001 characters cut, sha256 ")

    def test_long_text_around_it_is_cut_and_says_so(self) -> None:
        text = f"data:image/png;base64,{encoded(PNG)} " + "x" * (snapshot.MAX_TEXT + 100)
        shown = settled(text)
        assert sha256(PNG) in shown
        assert len(shown) < snapshot.MAX_TEXT + 100
        assert shown.endswith("more characters cut)")

    @given(st.text(alphabet="data:;base64,/=+-_ image.png", max_size=300), st.integers(0, 40))
    def test_any_text_stays_text(self, text: str, times: int) -> None:
        assert isinstance(settled(text * times), str)

    def test_as_a_key(self) -> None:
        (key,) = settled({f"data:image/png;base64,{encoded(PNG)}": 1})
        assert key == f"data:image/png;base64,… ({len(encoded(PNG))} characters cut)"

    def test_without_a_kind(self) -> None:
        assert settled(f"data:;base64,{encoded(PNG)}").startswith(f"data:;base64,… ({len(PNG)} by")


class TestBytes:
    def test_kind_size_and_hash(self) -> None:
        for value in (PNG, bytearray(PNG), memoryview(PNG)):
            assert settled(value) == {
                "type": "bytes",
                "size": len(PNG),
                "sha256": sha256(PNG),
                "mime_type": "image/png",
            }

    def test_what_is_of_no_known_kind(self) -> None:
        assert settled(b"abc") == {"type": "bytes", "size": 3, "sha256": sha256(b"abc")}

    def test_a_buffer_may_change_meanwhile(self) -> None:
        buffer = bytearray(b"before")
        copy = take(buffer)
        buffer[:] = b"after!"
        assert orjson.loads(orjson.dumps(copy, default=media.described))["sha256"] == sha256(
            b"before"
        )

    def test_what_is_too_much_has_its_size_alone(self) -> None:
        data = bytes(snapshot.MAX_REFERRED // 2 + 1)
        first, second = settled([data, data])
        assert "sha256" in first
        assert second == {"type": "bytes", "size": len(data)}


class TestImages:
    def test_the_hash_is_of_the_pixels(self) -> None:
        image = Image.new("RGB", (8, 6), (1, 2, 3))
        said = settled({"type": "image", "image": image})["image"]
        assert said == {
            "type": "image",
            "width": 8,
            "height": 6,
            "mode": "RGB",
            "sha256": sha256(image.tobytes()),
        }

    def test_it_may_be_drawn_on_meanwhile(self) -> None:
        image = Image.new("L", (4, 4))
        before = sha256(image.tobytes())
        copy = take(image)
        image.putpixel((0, 0), 7)
        assert orjson.loads(orjson.dumps(copy, default=media.described))["sha256"] == before

    def test_one_that_is_not_read_stays_so(self, tmp_path: Path) -> None:
        Image.new("RGB", (4, 3)).save(tmp_path / "x.png")
        with Image.open(tmp_path / "x.png") as image:
            assert settled(image) == {"type": "image", "width": 4, "height": 3, "mode": "RGB"}
            assert image.tile  # still to be read

    def test_a_large_one_is_not_copied(self) -> None:
        image = Image.new("L", (2048, 2048))
        assert "sha256" not in settled(image)
        small = Image.new("L", (512, 512))
        assert ["sha256" in one for one in settled([small] * 6)] == [True] * 4 + [False] * 2


class TestWhen:
    """Hashing is left to whoever writes; what waits counts by its size."""

    def test_nothing_is_decoded_when_it_is_taken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def called(*args: Any, **kwargs: Any) -> Any:
            raise AssertionError("on the caller's thread")

        buffer = io.BytesIO()
        Image.new("RGB", (64, 64)).save(buffer, "PNG")
        values = [PNG, f"data:image/png;base64,{encoded(PNG)}", Image.open(buffer)]
        for name in ("_hash", "_said", "without"):
            monkeypatch.setattr(media, name, called)
        assert len(take(values)) == 3

    def test_a_reference_that_fails_is_said(self) -> None:
        def fail() -> Any:
            raise MemoryError

        reference = media.Reference(7, fail)
        assert reference.described() == "<7 bytes: cannot be described (MemoryError)>"
        assert str(reference) == reference.described()

    def test_nothing_else_is_dumped(self) -> None:
        with pytest.raises(TypeError, match="object is in no snapshot"):
            media.described(object())
