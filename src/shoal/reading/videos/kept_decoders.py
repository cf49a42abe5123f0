"""Open decoders, kept for the next group: opening a decoder takes longer than decoding a few small frames."""

from __future__ import annotations

import threading
from collections import OrderedDict

from shoal.formats.decoding.video.packet_decoder import PacketDecoder
from shoal.formats.decoding.video.video_table import VideoTable

_KEPT_DECODERS = 8  # in each thread


class KeptDecoders(threading.local):
    """The decoders that a thread used last, by number of the video."""

    def __init__(self) -> None:
        self._decoders: OrderedDict[int, PacketDecoder] = OrderedDict()

    def of(self, video: int, table: VideoTable) -> PacketDecoder:
        """Return the decoder of this thread for a video."""
        decoder = self._decoders.pop(video, None) or PacketDecoder(table)
        self._decoders[video] = decoder
        while len(self._decoders) > _KEPT_DECODERS:
            self._decoders.popitem(last=False)
        return decoder
