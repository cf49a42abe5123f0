# %% [markdown]
# # Is my loader shuffling?
#
# Measure how well a loader mixes sorted data, compare it with a perfect shuffle, and choose a window that is enough.
#
# Many datasets are stored class by class, or source by source. A loader that shuffles a buffer of a few thousand
# samples then gives batches of one class, and the loss has waves. This notebook shows the effect in numbers.

# %% [markdown]
# ## Sorted data
#
# 20,000 samples of 100 classes, stored class by class. The samples are tiny: only their order matters here.

# %%
import numpy as np

import shoal

NUM_SAMPLES, NUM_CLASSES, BATCH = 20_000, 100, 64
labels = np.arange(NUM_SAMPLES) * NUM_CLASSES // NUM_SAMPLES

texts = (f"sample {number}".ljust(100) for number in range(NUM_SAMPLES))
samples = ({"text": text, "label": int(label)} for text, label in zip(texts, labels, strict=True))
sizes = {"shard_bytes": "128KiB", "extent_bytes": 512}
shoal.pack.pack(samples, "sorted", format="jsonl", columns=["label"], **sizes)
ds = shoal.open("sorted")
ds

# %% [markdown]
# ## A loader that you do not trust
#
# Any loader will do: all you need are the numbers of the samples in the order of delivery. This generator is the
# shuffle buffer of many loaders: it draws from 1,000 samples and refills from the front.


# %%
def buffered(num_samples, size, seed):
    rng, buffer = np.random.default_rng(seed), []
    for number in range(num_samples):
        buffer.append(number)
        if len(buffer) > size:
            yield buffer.pop(rng.integers(len(buffer)))
    rng.shuffle(buffer)
    yield from buffer


emitted = np.array(list(buffered(NUM_SAMPLES, size=1000, seed=0)))
print("labels of a batch:", np.unique(labels[emitted[:BATCH]]))

# %% [markdown]
# The first batch has a few of 100 classes. `shoal.measure.audit` tests the order, and says how much it matters.

# %%
shoal.measure.audit(emitted, labels=labels, batch=BATCH)

# %% [markdown]
# ## Compare orders before a run
#
# `ds.quality` predicts the mixing of an order from the index alone. **VR** is the variance of batch means relative to
# a perfect shuffle: 1 is perfect. `near_vr` is VR over four successive batches: up to 1.5, models learned as from a
# perfect shuffle.

# %%
ds.shuffle("buffer", samples=1000).quality(batch=BATCH, key="label")

# %% [markdown]
# A window holds small chunks from everywhere instead of the next samples. This window has the memory of the buffer:
# about 1,000 samples, in chunks of four.

# %%
window = ds.shuffle(seed=0, window="120KiB", chunk=500)
window.quality(batch=BATCH, key="label")

# %% [markdown]
# The order in integers; the call reproduces it even if defaults change.

# %%
window.resolved

# %% [markdown]
# ## Measured
#
# The prediction reads no data. The order itself confirms it: the classes in the first five batches of both.

# %%
ids = window.ids(0)
for step in range(5):
    span = slice(step * BATCH, (step + 1) * BATCH)
    of_buffer, of_window = len(np.unique(labels[emitted[span]])), len(np.unique(labels[ids[span]]))
    print(f"batch {step}: {of_buffer:2} classes from the buffer, {of_window} from the window")

# %%
shoal.measure.audit(ids, labels=labels, batch=BATCH)

# %% [markdown]
# ## Your own loader
#
# Log the sample numbers of one epoch, one array for each epoch, and pass them to `shoal.measure.audit`; or write them
# to a file, and run `shoal audit ids.npy --html report.html`. [The guide](../guides/how-good-is-my-shuffle.md)
# explains each finding, and [the loss has waves](../guides/loss-has-waves.md) has the remedies.
