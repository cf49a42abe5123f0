/* Samples cut out of the bytes of a chunk: the compiled twin of `tar/headers_fast_path.py`, of `mds/reader.py`, and of
 * `_plain_example` in `tfrecord/tf_example.py`.
 *
 * A function returns the sample that its twin returns, or None for whatever is unusual or wrong in any way; the caller
 * then asks the twin, which reads it in full or says what is wrong. So no rule stands here alone, and a mistake here that
 * refuses too much costs time and nothing else.
 *
 * Limited API: one wheel of a platform serves each Python from 3.11 on.
 */
#include "_cutting.h"

#include "_tar_headers.h"

PyObject *tar_borders(PyObject *, PyObject *const *, Py_ssize_t); /* _tar_scanning.c */

#define MOST_SUFFIXES 64
#define SUFFIX_BYTES 24

/* A suffix as it is written in names of members, and the field that it names. */
typedef struct {
    Py_ssize_t length;
    char bytes[SUFFIX_BYTES];
    PyObject *field;
} Suffix;

typedef struct {
    PyObject *key; /* "__key__" */
    int num_suffixes;
    Suffix suffixes[MOST_SUFFIXES];
} State;

PyObject *
whole_or_none(PyObject *result, int whole)
{
    if (whole > 0)
        return result;
    Py_XDECREF(result);
    if (whole < 0) {
        if (!PyErr_ExceptionMatches(PyExc_Exception))
            return NULL; /* an interrupt */
        PyErr_Clear();
    }
    Py_RETURN_NONE;
}

Py_ssize_t
as_place(PyObject *number)
{
    return PyNumber_AsSsize_t(number, PyExc_OverflowError);
}

/* slice(begin, end) */
static PyObject *
slice_of(Py_ssize_t begin, Py_ssize_t end)
{
    PyObject *first = PyLong_FromSsize_t(begin), *stop = PyLong_FromSsize_t(end);
    PyObject *made = first == NULL || stop == NULL ? NULL : PySlice_New(first, stop, NULL);
    Py_XDECREF(first);
    Py_XDECREF(stop);
    return made;
}

/* Whether a payload may be a pointer of Git LFS or git-annex: as `MOST_POINTER_BYTES` and `POINTER_BEGINNINGS` say. */
static int
may_be_pointer(const char *payload, Py_ssize_t size)
{
    return size >= 15 && size <= 1024 &&
           (memcmp(payload, "version https:/", 15) == 0 || memcmp(payload, "/annex/objects/", 15) == 0);
}

/* A new reference to the field of a suffix, its lower case; NULL without an error if it is not short and ASCII. */
static PyObject *
field_of(State *state, const char *suffix, Py_ssize_t length)
{
    char lower[SUFFIX_BYTES];
    for (int i = 0; i < state->num_suffixes; i++) {
        Suffix *known = &state->suffixes[i];
        if (known->length == length && memcmp(known->bytes, suffix, (size_t)length) == 0)
            return Py_NewRef(known->field);
    }
    if (length >= SUFFIX_BYTES)
        return NULL;
    for (Py_ssize_t i = 0; i < length; i++) {
        unsigned char byte = (unsigned char)suffix[i];
        if (byte >= 128)
            return NULL;
        lower[i] = (char)(byte >= 'A' && byte <= 'Z' ? byte + 32 : byte);
    }
    PyObject *field = PyUnicode_DecodeUTF8(lower, length, NULL);
    if (field == NULL)
        return NULL;
    PyUnicode_InternInPlace(&field);
    if (state->num_suffixes < MOST_SUFFIXES) {
        Suffix *known = &state->suffixes[state->num_suffixes++];
        known->length = length;
        memcpy(known->bytes, suffix, (size_t)length);
        known->field = Py_NewRef(field);
    }
    return field;
}

/* Set or compare the key of a sample; 1, 0 if it has another, -1 on an error. */
static int
has_key(State *state, PyObject *sample, const Name *name)
{
    PyObject *key = PyUnicode_DecodeUTF8(name->key, name->key_length, "surrogateescape");
    if (key == NULL)
        return -1;
    PyObject *known = PyDict_GetItemWithError(sample, state->key);
    int same = -1;
    if (known != NULL)
        same = PyObject_RichCompareBool(known, key, Py_EQ);
    else if (!PyErr_Occurred() && PyDict_SetItem(sample, state->key, key) == 0)
        same = 1;
    Py_DECREF(key);
    return same;
}

/* Add a value under the field of a suffix; 1, 0 if there is one already or the suffix is unusual, -1 on an error. */
static int
add_field(State *state, PyObject *sample, const Name *name, PyObject *value)
{
    PyObject *field = value == NULL ? NULL : field_of(state, name->suffix, name->suffix_length);
    if (field == NULL)
        return PyErr_Occurred() ? -1 : 0;
    Py_ssize_t before = PyDict_Size(sample);
    int failed = PyDict_SetItem(sample, field, value);
    int is_new = PyDict_Size(sample) > before && PyUnicode_CompareWithASCIIString(field, "__url__") != 0;
    Py_DECREF(field);
    return failed ? -1 : is_new;
}

/* Fill the sample from the members in [*at, end), of which the bytes up to `held` are there; 0 if the twin must read it,
 * -1 on an error. `at` moves behind the last member whose headers are there. A payload that is not is a slice of places
 * counted from `base`, which is the place of data[0]. */
static int
add_members(
    State *state, PyObject *sample, const char *data, Py_ssize_t held, Py_ssize_t *at, Py_ssize_t end, Py_ssize_t base)
{
    Py_ssize_t begin = *at, next, headers = *at; /* where the headers of a member begin, its PAX header included */
    Name name;
    for (; headers < end; headers = next) {
        if (held - headers < BLOCK)
            return held < end && *at > begin;
        const char *header = data + headers;
        int64_t size = checked_size((const unsigned char *)header);
        Py_ssize_t payload = headers + BLOCK;
        if (size < 0 || size > end - payload)
            return 0;
        next = payload + (Py_ssize_t)((size + BLOCK - 1) & -BLOCK);
        if (next > end)
            return 0;
        if (header[156] == 'x') {
            const char *records = data + payload;
            if (size > held - payload)
                return *at > begin;
            if (next >= end || is_of_interest(records, (Py_ssize_t)size))
                return 0;
            continue;
        }
        if (header[156] != '0' && header[156] != 0 && header[156] != '7')
            return 0;
        int how = split_name(header, &name);
        if (how == USUAL) {
            how = has_key(state, sample, &name);
            if (how > 0) {
                PyObject *value = NULL;
                if (size <= held - payload && may_be_pointer(data + payload, (Py_ssize_t)size))
                    return 0;
                if (size <= held - payload)
                    value = PyBytes_FromStringAndSize(data + payload, (Py_ssize_t)size);
                else
                    value = slice_of(base + payload, base + payload + (Py_ssize_t)size);
                how = add_field(state, sample, &name, value);
                Py_XDECREF(value);
            }
        }
        if (how <= 0)
            return how;
        *at = next;
    }
    return *at == end;
}

static int
fill_tar_sample(const void *how, PyObject *sample, const char *data, Py_ssize_t start, Py_ssize_t end)
{
    State *state = *(State *const *)how;
    int whole = add_members(state, sample, data, end, &start, end, 0);
    return whole > 0 && PyDict_Size(sample) == 0 ? 0 : whole;
}

/* tar_sample(data, start, end) */
static PyObject *
tar_sample(PyObject *module, PyObject *const *args, Py_ssize_t num_args)
{
    if (num_args != 3 || !PyBytes_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "tar_sample(data: bytes, start: int, end: int)");
        return NULL;
    }
    Py_ssize_t start = as_place(args[1]), end = as_place(args[2]);
    if (PyErr_Occurred())
        return NULL;
    if (start < 0 || end < start || end > PyBytes_Size(args[0]))
        Py_RETURN_NONE;
    PyObject *sample = PyDict_New();
    if (sample == NULL)
        return NULL;
    State *state = PyModule_GetState(module);
    return whole_or_none(sample, fill_tar_sample(&state, sample, PyBytes_AsString(args[0]), start, end));
}

/* tar_samples(held, ids, units, last, at, stop) */
static PyObject *
tar_samples(PyObject *module, PyObject *const *args, Py_ssize_t num_args)
{
    State *state = PyModule_GetState(module);
    return cut_next(args, num_args, fill_tar_sample, &state);
}

/* tar_front(sample, data, position, end) */
static PyObject *
tar_front(PyObject *module, PyObject *const *args, Py_ssize_t num_args)
{
    if (num_args != 4 || !PyDict_Check(args[0]) || !PyBytes_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "tar_front(sample: dict, data: bytes, position: int, end: int)");
        return NULL;
    }
    Py_ssize_t position = as_place(args[2]), end = as_place(args[3]), at = 0, held = PyBytes_Size(args[1]);
    if (PyErr_Occurred())
        return NULL;
    if (position < 0 || end < position)
        Py_RETURN_NONE;
    held = held < end - position ? held : end - position;
    State *state = PyModule_GetState(module);
    int whole = add_members(state, args[0], PyBytes_AsString(args[1]), held, &at, end - position, position);
    return whole_or_none(whole > 0 ? PyLong_FromSsize_t(position + at) : NULL, whole);
}

static uint32_t
u32(const char *at)
{
    const unsigned char *b = (const unsigned char *)at;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

/* How values are made of their bytes, where no function of Python is called; the numbers of `mds/encodings.py`. */
enum { INTEGER = 1, TEXT = 2, BYTES = 3 };

static PyObject *
value_of(PyObject *kind, const char *at, Py_ssize_t size)
{
    if (PyLong_Check(kind)) {
        switch (PyLong_AsLong(kind)) {
        case INTEGER: {
            if (size != 8) {
                PyErr_SetString(PyExc_ValueError, "an integer has 8 bytes");
                return NULL;
            }
            uint64_t low = u32(at), high = u32(at + 4);
            return PyLong_FromLongLong((int64_t)(high << 32 | low));
        }
        case TEXT:
            return PyUnicode_DecodeUTF8(at, size, NULL);
        default:
            return PyBytes_FromStringAndSize(at, size);
        }
    }
    PyObject *stored = PyBytes_FromStringAndSize(at, size);
    if (stored == NULL)
        return NULL;
    PyObject *value = PyObject_CallFunctionObjArgs(kind, stored, NULL);
    Py_DECREF(stored);
    return value;
}

/* Fill the sample from the values in [start, end), as add_members does. A column is (name, size or -1, kind): where the
 * size is -1, it is one of the sizes at the start; a kind is one of the above, a function of bytes, or None: not wanted. */
static int
add_columns(PyObject *sample, PyObject *columns, Py_ssize_t num_sizes, const char *data, Py_ssize_t start, Py_ssize_t end)
{
    Py_ssize_t num_columns = PyTuple_Size(columns);
    if (num_columns < 0)
        return -1;
    if (num_sizes < 0 || num_sizes > (end - start) / 4)
        return 0;
    const char *sizes = data + start;
    Py_ssize_t at = start + 4 * num_sizes;
    for (Py_ssize_t i = 0; i < num_columns; i++) {
        PyObject *column = PyTuple_GetItem(columns, i);
        PyObject *name, *kind;
        Py_ssize_t size;
        if (column == NULL || (name = PyTuple_GetItem(column, 0)) == NULL || (kind = PyTuple_GetItem(column, 2)) == NULL)
            return -1;
        size = PyLong_AsSsize_t(PyTuple_GetItem(column, 1));
        if (size < 0) {
            if (PyErr_Occurred())
                return -1;
            if (num_sizes-- == 0)
                return 0;
            size = (Py_ssize_t)u32(sizes);
            sizes += 4;
        }
        if (size > end - at)
            return 0;
        if (kind != Py_None) {
            PyObject *value = value_of(kind, data + at, size);
            int failed = value == NULL || PyDict_SetItem(sample, name, value);
            Py_XDECREF(value);
            if (failed)
                return -1;
        }
        at += size;
    }
    return at == end;
}

/* mds_sample(columns, num_sizes, data, start, end) */
static PyObject *
mds_sample(PyObject *module, PyObject *const *args, Py_ssize_t num_args)
{
    (void)module;
    if (num_args != 5) {
        PyErr_SetString(PyExc_TypeError, "mds_sample(columns, num_sizes, data, start, end)");
        return NULL;
    }
    Py_ssize_t num_sizes = as_place(args[1]), start = as_place(args[3]), end = as_place(args[4]);
    if (PyErr_Occurred())
        return NULL;
    Py_buffer view;
    if (PyObject_GetBuffer(args[2], &view, PyBUF_SIMPLE))
        return NULL;
    PyObject *sample = PyDict_New();
    int whole = sample == NULL ? -1 : 0;
    if (sample != NULL && 0 <= start && start <= end && end <= view.len)
        whole = add_columns(sample, args[0], num_sizes, view.buf, start, end);
    PyBuffer_Release(&view);
    return whole_or_none(sample, whole);
}

/* The columns of a shard, and how many of them have a size in each sample. */
typedef struct {
    PyObject *columns;
    Py_ssize_t num_sizes;
} Described;

static int
fill_mds_sample(const void *how, PyObject *sample, const char *data, Py_ssize_t start, Py_ssize_t end)
{
    const Described *described = how;
    return add_columns(sample, described->columns, described->num_sizes, data, start, end);
}

/* mds_samples(columns, num_sizes, held, ids, units, last, at, stop) */
static PyObject *
mds_samples(PyObject *module, PyObject *const *args, Py_ssize_t num_args)
{
    (void)module;
    if (num_args < 2) {
        PyErr_SetString(PyExc_TypeError, "mds_samples(columns, num_sizes, ...)");
        return NULL;
    }
    Described described = {args[0], as_place(args[1])};
    return PyErr_Occurred() ? NULL : cut_next(args + 2, num_args - 2, fill_mds_sample, &described);
}

/* Read a number of seven bits a byte, lowest first, and move `at` behind it; 0 if it does not end before `end`. */
static int
varint(const unsigned char *data, Py_ssize_t *at, Py_ssize_t end, uint64_t *value)
{
    *value = 0;
    for (int shift = 0; shift < 70 && *at < end; shift += 7) {
        unsigned char byte = data[(*at)++];
        *value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 128)
            return 1;
    }
    return 0;
}

/* Move `at` from a tag to where the message behind it begins; 0 unless that ends at `stop`. */
static int
into_message(const unsigned char *data, Py_ssize_t *at, Py_ssize_t stop)
{
    uint64_t size;
    *at += 1;
    return *at < stop && varint(data, at, stop, &size) && size == (uint64_t)(stop - *at);
}

/* The packed integers in [at, stop) as the bytes of int64 of this machine; NULL, perhaps without an error. */
static PyObject *
unpacked(const unsigned char *data, Py_ssize_t at, Py_ssize_t stop)
{
    Py_ssize_t count = 0;
    for (Py_ssize_t i = at; i < stop; i++)
        count += data[i] < 128;
    PyObject *numbers = PyBytes_FromStringAndSize(NULL, 8 * count);
    char *to = numbers == NULL ? NULL : PyBytes_AsString(numbers);
    uint64_t value;
    while (to != NULL && at < stop) {
        if (!varint(data, &at, stop, &value)) {
            Py_DECREF(numbers);
            return NULL;
        }
        memcpy(to, &value, 8);
        to += 8;
    }
    return numbers;
}

/* Fill the features from the entries of the message in [0, end), as add_members does. */
static int
add_features(PyObject *features, const unsigned char *data, Py_ssize_t end, PyObject *floats, PyObject *integers)
{
    Py_ssize_t at = 0;
    if (end < 2 || data[0] != 10 || !into_message(data, &at, end))
        return 0;
    while (at < end) {
        uint64_t size;
        if (data[at++] != 10 || !varint(data, &at, end, &size) || size > (uint64_t)(end - at))
            return 0;
        Py_ssize_t stop = at + (Py_ssize_t)size;
        if (stop - at < 2 || data[at] != 10 || data[at + 1] > 127)
            return 0;
        const char *name = (const char *)data + at + 2;
        Py_ssize_t length = data[at + 1], values = at + 2 + length;
        if (values >= stop || data[values] != 18 || !into_message(data, &values, stop) || values >= stop)
            return 0;
        unsigned char kind = data[values];
        if (!into_message(data, &values, stop) || values >= stop || data[values] != 10)
            return 0;
        if (!into_message(data, &values, stop) || (kind != 10 && (values == stop || (kind != 18 && kind != 26))))
            return 0;
        if (kind == 18 && (stop - values) % 4)
            return 0;
        const char *from = (const char *)data + values;
        PyObject *value = kind == 26 ? unpacked(data, values, stop) : PyBytes_FromStringAndSize(from, stop - values);
        if (value == NULL)
            return PyErr_Occurred() ? -1 : 0;
        if (kind != 10) {
            PyObject *array = PyObject_CallFunctionObjArgs(kind == 18 ? floats : integers, value, NULL);
            Py_DECREF(value);
            value = array;
        }
        Py_ssize_t before = PyDict_Size(features);
        PyObject *key = value == NULL ? NULL : PyUnicode_DecodeUTF8(name, length, NULL);
        int failed = key == NULL || PyDict_SetItem(features, key, value);
        Py_XDECREF(key);
        Py_XDECREF(value);
        if (failed)
            return -1;
        if (PyDict_Size(features) == before)
            return 0; /* a name comes twice */
        at = stop;
    }
    return 1;
}

/* plain_example(data, floats, integers) */
static PyObject *
plain_example(PyObject *module, PyObject *const *args, Py_ssize_t num_args)
{
    (void)module;
    if (num_args != 3 || !PyBytes_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "plain_example(data: bytes, floats, integers)");
        return NULL;
    }
    PyObject *features = PyDict_New();
    if (features == NULL)
        return NULL;
    const unsigned char *data = (const unsigned char *)PyBytes_AsString(args[0]);
    return whole_or_none(features, add_features(features, data, PyBytes_Size(args[0]), args[1], args[2]));
}

static PyMethodDef methods[] = {
    {"tar_sample", (PyCFunction)(void (*)(void))tar_sample, METH_FASTCALL,
     "Return the sample in data[start:end], bytes of a tar, as `read_plain_sample` does."},
    {"tar_front", (PyCFunction)(void (*)(void))tar_front, METH_FASTCALL,
     "Add to a sample the members whose headers are in the data at a position; return where the next one begins."},
    {"tar_borders", (PyCFunction)(void (*)(void))tar_borders, METH_FASTCALL,
     "Follow plain members from the start of a buffer; return where samples begin, and how the grouping goes on."},
    {"mds_sample", (PyCFunction)(void (*)(void))mds_sample, METH_FASTCALL,
     "Return the sample in data[start:end], bytes of an MDS shard; columns are (name, size or -1, kind)."},
    {"tar_samples", (PyCFunction)(void (*)(void))tar_samples, METH_FASTCALL,
     "Return the next samples of some pieces of tars, as `tar_sample` cuts them."},
    {"mds_samples", (PyCFunction)(void (*)(void))mds_samples, METH_FASTCALL,
     "Return the next samples of some pieces of MDS shards, as `mds_sample` cuts them."},
    {"plain_example", (PyCFunction)(void (*)(void))plain_example, METH_FASTCALL,
     "Return the features of a tf.train.Example; two functions make arrays of the bytes of its float32 and int64."},
    {NULL, NULL, 0, NULL},
};

static int
exec_module(PyObject *module)
{
    State *state = PyModule_GetState(module);
    state->key = PyUnicode_InternFromString("__key__");
    state->num_suffixes = 0;
    return state->key == NULL ? -1 : PyModule_AddFunctions(module, gathering_methods);
}

static void
free_module(void *module)
{
    State *state = PyModule_GetState(module);
    if (state == NULL)
        return;
    Py_CLEAR(state->key);
    for (int i = 0; i < state->num_suffixes; i++)
        Py_CLEAR(state->suffixes[i].field);
    state->num_suffixes = 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, exec_module}, {0, NULL}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_cutting", NULL, sizeof(State), methods, slots, NULL, NULL, free_module};

PyMODINIT_FUNC
PyInit__cutting(void)
{
    return PyModuleDef_Init(&definition);
}
