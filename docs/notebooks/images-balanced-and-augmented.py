# %% [markdown]
# # Images, balanced and augmented
#
# Balance classes of very different sizes, augment with random numbers that are the same in every run, and look at it.
#
# You need `pip install shoal[images]`.

# %% [markdown]
# ## A folder of classes
#
# 300 circles, 60 squares and 12 crosses, as PNG files in a folder for each class.

# %%
from pathlib import Path

import numpy as np
from PIL import Image

import shoal

SIZE, COUNTS = 64, {"circle": 300, "square": 60, "cross": 12}


def shape(name, rng):
    y, x = np.mgrid[:SIZE, :SIZE] - rng.integers(24, 40, size=2)[:, None, None]
    if name == "circle":
        inside = x**2 + y**2 < 18**2
    elif name == "square":
        inside = (abs(x) < 16) & (abs(y) < 16)
    else:
        inside = ((abs(x) < 6) & (abs(y) < 20)) | ((abs(y) < 6) & (abs(x) < 20))
    colour = rng.integers(40, 200, size=3, dtype=np.uint8)
    return np.where(inside[..., None], colour, np.uint8(235))


rng = np.random.default_rng(0)
for name, count in COUNTS.items():
    Path("shapes", name).mkdir(parents=True)
    for number in range(count):
        Image.fromarray(shape(name, rng)).save(f"shapes/{name}/{number:03d}.png")

# %% [markdown]
# Packing shuffles the files once, and keeps the class as a column of the index.

# %%
shoal.pack.pack("shapes", "packed", shuffle=True, seed=0)
ds = shoal.open("packed")
ds

# %% [markdown]
# ## As it is
#
# The order follows the sizes of the classes: nearly all are circles.

# %%
plain = ds.shuffle(seed=0).decode("rgb8")
plain.show(8)

# %% [markdown]
# ## Balanced
#
# `sample` decides how often each sample comes in an epoch. With `balanced=True` all classes come equally often, give
# or take one. The repeats are known before the run.

# %%
balanced = ds.sample(by="cls", balanced=True).shuffle(seed=0).decode("rgb8")
print(balanced.repeats)
balanced.show(8)

# %%
labels = ds.index_column("cls")
natural, even = (np.bincount(labels[each.ids(0)], minlength=3) for each in (plain, balanced))
for number, name in enumerate(ds.classes):
    print(f"{name:7} {natural[number]:3} of an epoch as it is, {even[number]:3} balanced")

# %% [markdown]
# ## Augmented
#
# `map(seed=True)` passes a generator of random numbers to the function. The numbers follow from the seed, the epoch
# and the sample: a resumed run gets the same pictures, and each epoch gets others.


# %%
def augmented(sample, rng):
    pixels = sample["png"]
    if rng.random() < 0.5:
        pixels = pixels[:, ::-1]
    pixels = np.roll(pixels, rng.integers(-8, 9, size=2), axis=(0, 1))
    pixels = np.clip(pixels * rng.uniform(0.6, 1.1), 0, 255).astype(np.uint8)
    return {"image": pixels, "cls": sample["cls"]}


train = balanced.map(augmented, seed=True).batch(32)
train.show(8)

# %% [markdown]
# The next epoch has other repeats, in another order, with other random numbers:

# %%
train.set_epoch(1)
train.show(4)

# %% [markdown]
# ## Batches
#
# `show` never moves the position: the run begins at the first batch of this epoch.

# %%
batch = next(iter(train))
print(batch["image"].shape, batch["image"].dtype)
print("classes in the batch:", np.bincount(batch["cls"], minlength=3))
train

# %% [markdown]
# More: [balance classes](../guides/balance-classes.md), [from ImageFolder](../guides/from-imagefolder.md), [images are
# slow](../guides/images-are-slow.md).
