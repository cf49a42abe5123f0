# %% [markdown]
# # Five minutes from a URL to batches
#
# Open shards at a URL, look at the samples, shuffle them, make batches, stop, and resume at the exact sample.
#
# You need `pip install shoal[images,remote]`, and no network: a small server on this machine stands for your bucket.

# %% [markdown]
# ## Some data
#
# 240 pictures with captions, in four tar shards. `shoal.pack.pack` writes samples of any kind. Skip this cell if you
# have shards.

# %%
import io

import numpy as np
from PIL import Image

import shoal

COLOURS = {"red": (205, 60, 50), "green": (60, 150, 90), "blue": (50, 100, 190)}


def picture(number):
    """A disc on a grey ground: its colour and its place tell which sample it is."""
    name = list(COLOURS)[number % 3]
    y, x = np.mgrid[:96, :96]
    inside = (x - 20 - number % 57) ** 2 + (y - 25 - number % 43) ** 2 < 18**2
    pixels = np.where(inside[..., None], np.uint8(COLOURS[name]), np.uint8(225))
    Image.fromarray(pixels).save(file := io.BytesIO(), "JPEG")
    text = f"a {name} disc, number {number}"
    return {"__key__": f"disc-{number:03d}", "jpg": file.getvalue(), "txt": text}


summary = shoal.pack.pack(map(picture, range(240)), "bucket", shard_bytes="200KiB")
print(f"{summary.num_samples} samples in {len(summary.shards)} shards")

# %% [markdown]
# ## Open a URL
#
# The first call builds an index, a small table of all samples, from the headers of the shards. Later calls reuse it.
# `https://`, `s3://`, `gs://`, `az://` and paths work in the same way.

# %%
from contextlib import ExitStack

from shoal.testing import RangeServer

until_the_end = ExitStack()
server = until_the_end.enter_context(RangeServer("bucket"))

ds = shoal.open(f"{server.url}/shard-{{000000..000003}}.tar")
ds

# %% [markdown]
# ## Look at samples
#
# `show` reads the next samples of the order. The position of the dataset stays.

# %%
ds.show(6)

# %% [markdown]
# ## Shuffle, decode, batch
#
# Each verb returns a new dataset; nothing is read yet. The order is new in each epoch, and the same on every machine.

# %%
train = ds.shuffle(seed=0).decode("rgb8").batch(16)
train

# %% [markdown]
# A batch is a dict. Arrays of equal shape are stacked, and other values become lists.

# %%
iterator = iter(train)
batch = next(iterator)
print(batch["jpg"].shape, batch["jpg"].dtype)
print(batch["txt"][:3])

# %% [markdown]
# ## Stop, and resume at the exact sample
#
# The state is a few numbers. It resumes the run with another batch size, on another number of machines.

# %%
for _ in range(4):
    next(iterator)
state = train.state_dict()
expected = next(iterator)["txt"]

resumed = ds.shuffle(seed=0).decode("rgb8").batch(8)
resumed.load_state_dict(state)
two_batches = iter(resumed)
texts = next(two_batches)["txt"] + next(two_batches)["txt"]
print("the same samples:", texts == expected)
resumed

# %% [markdown]
# ## What limits the run?
#
# `stats` counts everything, and says where the time goes. Here nobody trains, so the loader itself takes the time.

# %% varies
train.set_epoch(1)
for _ in train:
    pass
train.stats()

# %%
until_the_end.close()

# %% [markdown]
# Next: [is my loader shuffling?](is-my-loader-shuffling.ipynb), [tokens from three
# sources](tokens-from-three-sources.ipynb), or the [tutorial](../tutorial.md).
