/* What the source files of `shoal.formats._cutting` share. */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdint.h>
#include <string.h>

/* Fill a sample from the bytes in [start, end); 1 if they are one whole sample, 0 if the twin must read them, -1 on an
 * error. */
typedef int (*FillSample)(const void *how, PyObject *sample, const char *data, Py_ssize_t start, Py_ssize_t end);

/* The result if it is whole (1), else None: also after an error (-1), which the twin meets again and explains. */
PyObject *whole_or_none(PyObject *result, int whole);

/* An index of Python; -1 with an error if it is none. */
Py_ssize_t as_place(PyObject *number);

/* The next samples of some held pieces, as `Piece` in `rows/records.py` says; the arguments are those of its `cut`. */
PyObject *cut_next(PyObject *const *args, Py_ssize_t num_args, FillSample fill, const void *how);

/* The functions of `_gathering.c`. */
extern PyMethodDef gathering_methods[];
