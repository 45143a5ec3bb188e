"""Whether an image file was cut short, told by the structure of its format without decoding it."""

from __future__ import annotations

_WITHOUT_LENGTH = {0x00, 0x01, *range(0xD0, 0xDA)}  # JPEG markers that no well-formed header has


def is_cut_short(content: bytes) -> bool:
    """Whether a JPEG, PNG, GIF, WebP, AVIF or HEIC file lacks its end; data after the end do no harm.

    Only certain cases count: with an unknown format or a structure that makes no sense, the decoder has to judge.
    """
    if content.startswith(b"\xff\xd8\xff"):
        return _jpeg_lacks_end(content)
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return content.rfind(b"IEND") < 0
    if content.startswith((b"GIF87a", b"GIF89a")):
        return _gif_lacks_end(content)
    if content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        return len(content) < 8 + int.from_bytes(content[4:8], "little")
    return content[4:8] == b"ftyp" and _boxes_lack_end(content)


def _jpeg_lacks_end(content: bytes) -> bool:
    position = 2
    while (marker := content[position : position + 2]) != b"\xff\xda":  # before the scan, a preview may have an end
        if len(marker) < 2:
            return True
        if marker[0] != 0xFF or marker[1] in _WITHOUT_LENGTH:
            return False
        length = int.from_bytes(content[position + 2 : position + 4], "big")
        position += 1 if marker[1] == 0xFF else 2 + length  # a marker may be preceded by any number of 0xFF
    return content.rfind(b"\xff\xd9", position) < 0  # within a scan, 0xFF is always followed by 0 or another marker


def _gif_lacks_end(content: bytes) -> bool:
    def colours(flags: int) -> int:
        return 3 << ((flags & 7) + 1) if flags & 0x80 else 0  # bytes of a colour table

    try:
        position = 13 + colours(content[10])
        while (block := content[position]) != 0x3B:  # the trailer
            if block == 0x2C:  # a frame
                position += 11 + colours(content[position + 9])
            elif block == 0x21:  # an extension
                position += 2
            else:
                return False
            while length := content[position]:
                position += 1 + length
            position += 1
    except IndexError:
        return True
    return False


def _boxes_lack_end(content: bytes) -> bool:
    position = 0
    while position + 8 <= len(content):
        length = int.from_bytes(content[position : position + 4], "big")
        if length == 1:  # it did not fit into 32 bits
            length = int.from_bytes(content[position + 8 : position + 16], "big")
        if length < 8:  # 0 reaches to the end of the file; others make no sense
            return False
        if position + length > len(content):
            return content[position + 4 : position + 8] in {b"ftyp", b"meta", b"mdat", b"moov"}  # else appended data
        position += length
    return False
