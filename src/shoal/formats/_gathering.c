/* Many samples in one call: cut out of the bytes of several chunks, turned into columns, and values and rows gathered
 * from columns. The twins are loops in `reading/fetcher.py`, `pipeline/collate.py`, `tables/text_cells.py` and numpy's
 * `take`.
 *
 * As in `_cutting.c`, None leaves the work to the twin. Every offset is compared with the size of its bytes before it is
 * used, so wrong offsets give None and no wrong memory.
 */
#include "_cutting.h"

/* The place at a number in a list or another sequence; -1 if there is none, without an error. */
static Py_ssize_t
place_in(PyObject *starts, Py_ssize_t number)
{
    PyObject *place = PySequence_GetItem(starts, number);
    Py_ssize_t value = place == NULL ? -1 : PyNumber_AsSsize_t(place, PyExc_OverflowError);
    Py_XDECREF(place);
    if (value < 0)
        PyErr_Clear();
    return value;
}

/* Fill a sample from sample `number` of a piece: (function, data, starts). */
static int
fill_from(PyObject *piece, Py_ssize_t number, PyObject *sample, FillSample fill, const void *how)
{
    PyObject *data = PyTuple_GetItem(piece, 1), *starts = PyTuple_GetItem(piece, 2);
    Py_ssize_t start = place_in(starts, number), end = place_in(starts, number + 1);
    if (start < 0 || end < start)
        return 0;
    if (PyBytes_Check(data)) /* a buffer of them takes 50 ns */
        return end > PyBytes_Size(data) ? 0 : fill(how, sample, PyBytes_AsString(data), start, end);
    Py_buffer view;
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE))
        return -1;
    int whole = end > view.len ? 0 : fill(how, sample, view.buf, start, end);
    PyBuffer_Release(&view);
    return whole;
}

/* Whether a tuple begins with a piece and a number, as `held` must have them. */
static int
is_held(PyObject *held)
{
    if (!PyTuple_Check(held) || PyTuple_Size(held) < 2)
        return 0;
    PyObject *piece = PyTuple_GetItem(held, 0);
    return PyTuple_Check(piece) && PyTuple_Size(piece) == 3;
}

/* A new reference to the tuple of a unit, with a piece whose function is `cut` (any, if that is NULL); else NULL, with
 * an error only if there was one. */
static PyObject *
held_by(PyObject *units_held, PyObject *unit, PyObject *cut)
{
    PyObject *held = unit == NULL ? NULL : PyDict_GetItemWithError(units_held, unit);
    if (held == NULL || !is_held(held))
        return NULL;
    return cut == NULL || PyTuple_GetItem(PyTuple_GetItem(held, 0), 0) == cut ? Py_NewRef(held) : NULL;
}

/* As FillSample, but append the bytes of the sample to a list. */
static int
append_bytes(const void *how, PyObject *records, const char *data, Py_ssize_t start, Py_ssize_t end)
{
    (void)how;
    PyObject *record = PyBytes_FromStringAndSize(data + start, end - start);
    int whole = record == NULL || PyList_Append(records, record) ? -1 : 1;
    Py_XDECREF(record);
    return whole;
}

/* Append the sample with this id, of a unit that is held; as FillSample. */
static int
append_sample(PyObject *samples, PyObject *held, PyObject *id, FillSample fill, const void *how)
{
    Py_ssize_t number = as_place(id), first = PyErr_Occurred() ? 0 : as_place(PyTuple_GetItem(held, 1));
    int is_dict = fill != append_bytes;
    PyObject *sample = PyErr_Occurred() ? NULL : is_dict ? PyDict_New() : Py_NewRef(samples);
    if (sample == NULL)
        return -1;
    int whole = number < first ? 0 : fill_from(PyTuple_GetItem(held, 0), number - first, sample, fill, how);
    if (whole > 0 && is_dict && PyList_Append(samples, sample))
        whole = -1;
    Py_DECREF(sample);
    return whole;
}

PyObject *
cut_next(PyObject *const *args, Py_ssize_t num_args, FillSample fill, const void *how)
{
    if (num_args != 6 || !PyDict_Check(args[0]) || !PyList_Check(args[1]) || !PyList_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError, "(held: dict, ids: list, units: list, last: list or None, at, stop)");
        return NULL;
    }
    Py_ssize_t at = as_place(args[4]), stop = as_place(args[5]);
    PyObject *samples = PyErr_Occurred() ? NULL : PyList_New(0), *cut = NULL;
    int whole = samples == NULL ? -1 : 1;
    for (; whole > 0 && at < stop; at++) {
        PyObject *id = PyList_GetItem(args[1], at), *unit = id == NULL ? NULL : PyList_GetItem(args[2], at);
        PyObject *held = held_by(args[0], unit, cut);
        if (held == NULL) {
            whole = PyErr_Occurred() ? -1 : 0;
            break;
        }
        cut = PyTuple_GetItem(PyTuple_GetItem(held, 0), 0); /* compared, and not used */
        whole = append_sample(samples, held, id, fill, how);
        Py_DECREF(held);
        if (whole > 0 && args[3] != Py_None) {
            PyObject *is_last = PyList_GetItem(args[3], at);
            whole = is_last == NULL ? -1 : is_last != Py_True;
        }
    }
    if (whole < 0 && samples != NULL && PyErr_ExceptionMatches(PyExc_Exception))
        PyErr_Clear(); /* the twin meets it again */
    else if (whole < 0)
        Py_CLEAR(samples);
    return samples;
}

/* next_records(held, ids, units, last, at, stop) */
static PyObject *
next_records(PyObject *module, PyObject *const *args, Py_ssize_t num_args)
{
    (void)module;
    return cut_next(args, num_args, append_bytes, NULL);
}

/* The values of one field of all samples, in a new list; NULL without an error if a sample lacks the field. */
static PyObject *
column_of(PyObject *samples, PyObject *name)
{
    Py_ssize_t count = PyList_Size(samples);
    PyObject *column = PyList_New(count);
    for (Py_ssize_t i = 0; column != NULL && i < count; i++) {
        PyObject *sample = PyList_GetItem(samples, i);
        PyObject *value = sample == NULL ? NULL : PyDict_GetItemWithError(sample, name);
        if (value == NULL || PyList_SetItem(column, i, Py_NewRef(value)))
            Py_CLEAR(column);
    }
    return column;
}

/* transposed(samples) */
static PyObject *
transposed(PyObject *module, PyObject *samples)
{
    (void)module;
    Py_ssize_t count = PyList_Check(samples) ? PyList_Size(samples) : 0;
    for (Py_ssize_t i = 0; i < count; i++)
        if (!PyDict_CheckExact(PyList_GetItem(samples, i)))
            count = 0;
    if (count == 0)
        Py_RETURN_NONE;
    PyObject *first = PyList_GetItem(samples, 0);
    for (Py_ssize_t i = 1; i < count; i++)
        if (PyDict_Size(PyList_GetItem(samples, i)) != PyDict_Size(first))
            Py_RETURN_NONE;
    PyObject *names = PyDict_Keys(first), *columns = names == NULL ? NULL : PyDict_New();
    int whole = columns == NULL ? -1 : 1;
    for (Py_ssize_t i = 0; whole > 0 && i < PyList_Size(names); i++) {
        PyObject *name = PyList_GetItem(names, i);
        PyObject *column = PyUnicode_CheckExact(name) ? column_of(samples, name) : NULL;
        if (column == NULL)
            whole = PyErr_Occurred() ? -1 : 0;
        else if (PyDict_SetItem(columns, name, column))
            whole = -1;
        Py_XDECREF(column);
    }
    Py_XDECREF(names);
    return whole_or_none(columns, whole);
}

/* A contiguous buffer of whole numbers of one width; 0 with an error if it is none. */
static int
numbers_in(PyObject *object, Py_buffer *view, Py_ssize_t width)
{
    if (PyObject_GetBuffer(object, view, PyBUF_ND))
        return 0;
    if ((width && view->itemsize != width) || (view->itemsize != 4 && view->itemsize != 8)) {
        PyBuffer_Release(view);
        PyErr_SetString(PyExc_TypeError, "numbers of 4 or 8 bytes");
        return 0;
    }
    return 1;
}

static int64_t
number_at(const Py_buffer *view, Py_ssize_t place)
{
    int64_t wide;
    int32_t narrow;
    if (view->itemsize == 8) {
        memcpy(&wide, (const char *)view->buf + 8 * place, 8);
        return wide;
    }
    memcpy(&narrow, (const char *)view->buf + 4 * place, 4);
    return narrow;
}

/* The values of one unit: what lies between its offsets. */
typedef struct {
    Py_buffer offsets, data;
} Unit;

/* Open the units, each (offsets, data, ...); the number of opened ones, less than `count` after an error. */
static Py_ssize_t
open_units(PyObject *list, Unit *units, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *unit = PyList_GetItem(list, i);
        PyObject *offsets = unit == NULL ? NULL : PyTuple_GetItem(unit, 0), *data = offsets ? PyTuple_GetItem(unit, 1) : NULL;
        if (data == NULL || !numbers_in(offsets, &units[i].offsets, 0))
            return i;
        if (PyObject_GetBuffer(data, &units[i].data, PyBUF_SIMPLE)) {
            PyBuffer_Release(&units[i].offsets);
            return i;
        }
    }
    return count;
}

/* One value of a unit, bytes or text; NULL without an error if its offsets are wrong. */
static PyObject *
value_of_row(const Unit *unit, int64_t row, int is_text)
{
    Py_ssize_t rows = unit->offsets.len / unit->offsets.itemsize - 1;
    if (row < 0 || row >= rows)
        return NULL;
    int64_t begin = number_at(&unit->offsets, (Py_ssize_t)row), end = number_at(&unit->offsets, (Py_ssize_t)row + 1);
    if (begin < 0 || end < begin || end > unit->data.len)
        return NULL;
    const char *from = (const char *)unit->data.buf + begin;
    Py_ssize_t size = (Py_ssize_t)(end - begin);
    return is_text ? PyUnicode_DecodeUTF8(from, size, NULL) : PyBytes_FromStringAndSize(from, size);
}

/* values_of_rows(units, which, rows, is_text) */
static PyObject *
values_of_rows(PyObject *module, PyObject *const *args, Py_ssize_t num_args)
{
    (void)module;
    if (num_args != 4 || !PyList_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "values_of_rows(units: list, which, rows, is_text)");
        return NULL;
    }
    int is_text = PyObject_IsTrue(args[3]);
    Py_buffer which, rows;
    if (is_text < 0 || !numbers_in(args[1], &which, 8))
        return NULL;
    if (!numbers_in(args[2], &rows, 8)) {
        PyBuffer_Release(&which);
        return NULL;
    }
    Py_ssize_t num_units = PyList_Size(args[0]), count = rows.len / 8;
    Unit *units = PyMem_Calloc((size_t)num_units + 1, sizeof(Unit));
    Py_ssize_t opened = units == NULL ? -1 : open_units(args[0], units, num_units);
    PyObject *values = opened < num_units ? NULL : PyList_New(count);
    int whole = values == NULL ? -1 : which.len == rows.len;
    for (Py_ssize_t i = 0; whole > 0 && i < count; i++) {
        int64_t unit = number_at(&which, i);
        int is_there = unit >= 0 && unit < num_units;
        PyObject *value = is_there ? value_of_row(&units[unit], number_at(&rows, i), is_text) : NULL;
        if (value == NULL)
            whole = PyErr_Occurred() ? -1 : 0;
        else if (PyList_SetItem(values, i, value))
            whole = -1;
    }
    for (Py_ssize_t i = 0; i < opened; i++) {
        PyBuffer_Release(&units[i].offsets);
        PyBuffer_Release(&units[i].data);
    }
    PyMem_Free(units);
    PyBuffer_Release(&which);
    PyBuffer_Release(&rows);
    return whole_or_none(values, whole);
}

#define LINE 64
#define LINES_AHEAD 8
#define ROWS_AHEAD 2

#if defined(__GNUC__) || defined(__clang__)
#define BRING(address) __builtin_prefetch(address)
#else
#define BRING(address) (void)(address)
#endif

/* Where the rows of a column lie: `size` bytes each, `stride` bytes apart. */
typedef struct {
    const char *first;
    Py_ssize_t size, stride, num_rows;
} Column;

/* Copy rows to one place. The first lines of a row are brought while the rows before it are copied, since a processor's
 * own prefetching ends at each page. */
static void
copy_rows(char *to, const Column *column, const Py_buffer *rows, Py_ssize_t count)
{
    Py_ssize_t size = column->size, ahead = size < LINES_AHEAD * LINE ? size : LINES_AHEAD * LINE;
    for (Py_ssize_t i = 0; i < count; i++, to += size) {
        if (i + ROWS_AHEAD < count) {
            const char *later = column->first + number_at(rows, i + ROWS_AHEAD) * column->stride;
            for (Py_ssize_t at = 0; at < ahead; at += LINE)
                BRING(later + at);
        }
        memcpy(to, column->first + number_at(rows, i) * column->stride, (size_t)size);
    }
}

/* Whether all rows are in the column, and fill the output exactly. */
static int
are_there(const Column *column, const Py_buffer *rows, Py_ssize_t count, const Py_buffer *out)
{
    if (out->len != count * column->size)
        return 0;
    for (Py_ssize_t i = 0; i < count; i++)
        if (number_at(rows, i) < 0 || number_at(rows, i) >= column->num_rows)
            return 0;
    return 1;
}

/* take_rows(source, first, stride, rows, out) */
static PyObject *
take_rows(PyObject *module, PyObject *const *args, Py_ssize_t num_args)
{
    (void)module;
    if (num_args != 5) {
        PyErr_SetString(PyExc_TypeError, "take_rows(source, first, stride, rows, out)");
        return NULL;
    }
    Py_ssize_t first = as_place(args[1]), stride = PyErr_Occurred() ? 0 : as_place(args[2]);
    Py_buffer source, rows, out;
    if (PyErr_Occurred() || PyObject_GetBuffer(args[0], &source, PyBUF_ND))
        return NULL;
    if (!numbers_in(args[3], &rows, 8)) {
        PyBuffer_Release(&source);
        return NULL;
    }
    if (PyObject_GetBuffer(args[4], &out, PyBUF_ND | PyBUF_WRITABLE)) {
        PyBuffer_Release(&source);
        PyBuffer_Release(&rows);
        return NULL;
    }
    Py_ssize_t count = rows.len / 8, size = count ? out.len / count : 0;
    int is_whole = first >= 0 && stride > 0 && size <= stride && source.len - first >= size;
    Column column = {(const char *)source.buf + first, size, stride, 0};
    if (is_whole) {
        column.num_rows = (source.len - first - size) / stride + 1;
        is_whole = are_there(&column, &rows, count, &out);
    }
    if (is_whole) {
        Py_BEGIN_ALLOW_THREADS
        copy_rows(out.buf, &column, &rows, count);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&source);
    PyBuffer_Release(&rows);
    PyBuffer_Release(&out);
    return PyBool_FromLong(is_whole);
}

PyMethodDef gathering_methods[] = {
    {"next_records", (PyCFunction)(void (*)(void))next_records, METH_FASTCALL,
     "Return the bytes of the next samples of some pieces, as the `cut` of a `Piece` returns samples."},
    {"transposed", (PyCFunction)transposed, METH_O,
     "Return the lists of values of samples with the same fields, by name; None for anything else."},
    {"values_of_rows", (PyCFunction)(void (*)(void))values_of_rows, METH_FASTCALL,
     "Return the bytes or texts of rows; a unit is (offsets, data), and `which` numbers the unit of each row."},
    {"take_rows", (PyCFunction)(void (*)(void))take_rows, METH_FASTCALL,
     "Copy rows from `first` on, `stride` bytes apart, without the interpreter's lock; False if one does not exist."},
    {NULL, NULL, 0, NULL},
};
