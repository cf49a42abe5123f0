# %% [markdown]
# # Tokens from three sources
#
# Mix web pages, code and books by shares of tokens, pack them into sequences, and change the shares during the run.

# %% [markdown]
# ## Three sources of tokens
#
# Shards from `shoal pack --tokenize` have the tokens of each document, and their number in the index. Here random
# documents stand for yours: many short pages, and few long books.

# %%
import numpy as np

import shoal

VOCABULARY, LENGTH = 5000, 256
rng = np.random.default_rng(0)


def documents(name, count, mean):
    for number in range(count):
        length = int(rng.integers(mean // 2, 2 * mean))
        tokens = rng.integers(VOCABULARY, size=length, dtype=np.uint16)
        yield {"name": f"{name} {number}", "tokens": tokens, "num_tokens": length}


for name, count, mean in (("web", 1200, 100), ("code", 400, 200), ("books", 40, 1500)):
    shoal.pack.pack(documents(name, count, mean), name, format="mds", columns=["num_tokens"])

# %% [markdown]
# ## One dataset of three
#
# A weight is a share of tokens here. The order of the mixture is exact: at any position, the counts of the sources
# differ from their shares by about one sample.

# %%
sources = {name: shoal.open(name) for name in ("web", "code", "books")}
shares = {"web": 0.6, "code": 0.3, "books": 0.1}
mixture = shoal.mix(sources, weights=shares, unit="tokens", length="num_tokens", ends="all")
mixture = mixture.shuffle(seed=0)
mixture

# %% [markdown]
# The bars are shares of *samples*: a book has many more tokens than a page, so it comes rarely. `show` reads the next
# documents, each with its source.

# %%
mixture.show(6)

# %% [markdown]
# The shares of tokens in the first 1,000 documents:

# %%
counts = mixture.counts(1000)
mean_tokens = {name: sources[name].index_column("num_tokens").mean() for name in sources}
tokens = {name: counts[name] * mean_tokens[name] for name in sources}
{name: round(float(tokens[name] / sum(tokens.values())), 3) for name in sources}

# %% [markdown]
# ## Sequences of 256 tokens
#
# `pack_sequences` fills sequences with documents. `segment_ids` number the documents of a sequence, and `position_ids`
# begin at 0 in each document.

# %%
packed = mixture.pack_sequences(LENGTH, strategy="best_fit").batch(8)
packed

# %%
batch = next(iter(packed))
print({name: array.shape for name, array in batch.items()})
print("documents in each sequence:", batch["segment_ids"].max(axis=1))
print(f"padding: {(batch['segment_ids'] == 0).mean():.1%}")

# %% [markdown]
# ## More code from step 50 on
#
# `reweight` changes the shares from a step on. Earlier steps stay the same, so a state from before the change still
# loads, and no document is repeated or left out.

# %%
later = packed.reweight(at=50, weights={"web": 0.4, "code": 0.5, "books": 0.1}, in_steps=True)
print("step 49 is the same:", (packed.batch_ids(49) == later.batch_ids(49)).all())
print("step 60 is another: ", later.batch_ids(60).tolist() != packed.batch_ids(60).tolist())

# %% [markdown]
# ## A state for any number of ranks
#
# The state counts sequences. Two ranks continue where one stopped, and together they read the same global batch.

# %%
run = iter(later)
for _ in range(55):
    next(run)
state = later.state_dict()
expected = next(run)["tokens"]

halves = []
for rank in range(2):
    ranks = mixture.pack_sequences(LENGTH, strategy="best_fit").batch(global_batch_size=8)
    ranks = ranks.partition(rank=rank, world_size=2)
    ranks.load_state_dict(state)
    halves.append(next(iter(ranks))["tokens"])
print("the same tokens:", sorted(map(bytes, np.concatenate(halves))) == sorted(map(bytes, expected)))
ranks

# %% [markdown]
# More: [train on tokens](../guides/train-on-tokens.md), [change the mixture](../guides/change-the-mixture.md), [pack
# sequences](../guides/pack-sequences.md).
