/* One request and its plain response over a socket, without the interpreter's lock: the compiled twin of
 * `exchange_in_python` in `exchange.py`.
 *
 * A response is plain if its head is short, has the status 200 or 206, one Content-Length that is the size of the
 * buffer, and no Transfer-Encoding. The body of a plain response is received in the buffer. The bytes of any other
 * response are returned as they came, and the standard library reads on. So no rule of HTTP stands here alone.
 *
 * Limited API: one wheel of a platform serves each Python from 3.11 on.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>

#define MOST_HEAD_BYTES 8192
#define PIECE_BYTES (128 << 10) /* a thread is woken for so many bytes of a body */
#define MOMENT_SECONDS 0.05 /* longer than most stores take to answer */

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif

/* A socket that does not block, and the limits of an exchange. `error` is an errno, or 0. */
typedef struct {
    int fd, error, piece_bytes;
    double silence_seconds, until_seconds;
    PyThreadState *thread;
} Wire;

static double
monotonic_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Let the interpreter run the handlers of signals; -1 if one raised an exception. */
static int
handle_signals(Wire *wire)
{
    PyEval_RestoreThread(wire->thread);
    int result = PyErr_CheckSignals();
    wire->thread = PyEval_SaveThread();
    return result;
}

/* Wait until the socket can be read or written (`events`); -1 after a time limit or an error. */
static int
wait_for(Wire *wire, short events)
{
    double began = monotonic_seconds();
    for (;;) {
        double now = monotonic_seconds();
        double left = began + wire->silence_seconds - now;
        if (left > wire->until_seconds - now)
            left = wire->until_seconds - now;
        struct pollfd polled = {wire->fd, events, 0};
        int num_ready = left <= 0 ? 0 : poll(&polled, 1, left > 1e6 ? 1000000000 : (int)(1000 * left) + 1);
        if (num_ready > 0)
            return 0;
        if (num_ready == 0) {
            wire->error = ETIMEDOUT;
            return -1;
        }
        if (errno != EINTR) {
            wire->error = errno;
            return -1;
        }
        if (handle_signals(wire) < 0) {
            wire->error = EINTR;
            return -1;
        }
    }
}

/* True if nothing has come since the last response: new bytes are not a response, or end the connection. */
static int
is_idle(int fd)
{
    char byte;
    return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

/* Send all bytes of a request; -1 after an error. */
static int
send_all(Wire *wire, const char *bytes, Py_ssize_t length)
{
    while (length > 0) {
        ssize_t sent = send(wire->fd, bytes, (size_t)length, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent >= 0) {
            bytes += sent;
            length -= sent;
        }
        else if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) {
            if (wait_for(wire, POLLOUT) < 0)
                return -1;
        }
        else {
            wire->error = errno;
            return -1;
        }
    }
    return 0;
}

/* Be woken once so many bytes have come, or the connection has ended: each waking costs as much as 30 KB. */
static void
wake_after(Wire *wire, size_t num_bytes)
{
    int piece_bytes = num_bytes > PIECE_BYTES ? PIECE_BYTES : num_bytes > 0 ? (int)num_bytes : 1;
    if (piece_bytes != wire->piece_bytes)
        setsockopt(wire->fd, SOL_SOCKET, SO_RCVLOWAT, &piece_bytes, sizeof piece_bytes);
    wire->piece_bytes = piece_bytes;
}

/* Receive up to `most` bytes, at least one; 0 at the end of the connection, -1 after an error. */
static ssize_t
receive(Wire *wire, char *bytes, size_t most, size_t wanted)
{
    for (;;) {
        ssize_t received = recv(wire->fd, bytes, most, MSG_DONTWAIT);
        if (received >= 0)
            return received;
        if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
            wire->error = errno;
            return -1;
        }
        wake_after(wire, wanted);
        if (wait_for(wire, POLLIN) < 0)
            return -1;
    }
}

/* Wait until a whole response of the usual size may have come, or for a moment: other responses are shorter. */
static int
wait_for_body(Wire *wire, size_t num_bytes)
{
    if (num_bytes <= MOST_HEAD_BYTES)
        return 0;
    double silence_seconds = wire->silence_seconds;
    if (silence_seconds > MOMENT_SECONDS)
        wire->silence_seconds = MOMENT_SECONDS;
    wake_after(wire, num_bytes);
    int result = wait_for(wire, POLLIN);
    if (wire->error == ETIMEDOUT)
        result = wire->error = 0;
    wire->silence_seconds = silence_seconds;
    return result;
}

/* The length of a head with the empty line at its end; 0 if the end is missing. */
static size_t
head_length(const char *bytes, size_t length)
{
    for (size_t at = 3; at < length; at++)
        if (bytes[at] == '\n' && memcmp(bytes + at - 3, "\r\n\r", 3) == 0)
            return at + 1;
    return 0;
}

/* The Content-Length of a plain head; -1 if the head is not plain. */
static long long
plain_length(const char *head, size_t length)
{
    const char *line = head, *end = head + length - 2; /* the empty line */
    long long num_bytes = -1;
    if (length < 16 || memcmp(head, "HTTP/1.1 20", 11) != 0 || (head[11] != '6' && head[11] != '0'))
        return -1;
    while ((line = memchr(line, '\n', (size_t)(end - line))) != NULL && ++line < end) {
        if (strncasecmp(line, "transfer-encoding", 17) == 0)
            return -1;
        if (strncasecmp(line, "content-length", 14) != 0)
            continue;
        const char *at = line + 14;
        if (num_bytes >= 0 || *at++ != ':')
            return -1;
        while (*at == ' ')
            at++;
        int num_digits = 0;
        for (num_bytes = 0; *at >= '0' && *at <= '9' && num_digits < 18; num_digits++)
            num_bytes = 10 * num_bytes + (*at++ - '0');
        if (num_digits == 0 || *at != '\r')
            return -1;
    }
    return num_bytes;
}

/* The sizes of what was received: of the head and any bytes behind it, and of the body, -1 unless in the buffer. */
typedef struct {
    size_t head_bytes;
    Py_ssize_t body_bytes;
} Received;

static Received
run_exchange(Wire *wire, const Py_buffer *request, char *head, const Py_buffer *body)
{
    Received received = {0, -1};
    size_t length = 0;
    if (send_all(wire, request->buf, request->len) < 0 || wait_for_body(wire, (size_t)body->len) < 0)
        return received;
    while (length == 0 && received.head_bytes < MOST_HEAD_BYTES) {
        ssize_t more = receive(wire, head + received.head_bytes, MOST_HEAD_BYTES - received.head_bytes, 1);
        if (more <= 0)
            return received;
        received.head_bytes += (size_t)more;
        length = head_length(head, received.head_bytes);
    }
    size_t behind_bytes = received.head_bytes - length;
    if (length == 0 || behind_bytes > (size_t)body->len || plain_length(head, length) != body->len)
        return received;
    char *bytes = body->buf;
    if (behind_bytes > 0)
        memcpy(bytes, head + length, behind_bytes);
    received.head_bytes = length;
    received.body_bytes = (Py_ssize_t)behind_bytes;
    while (received.body_bytes < body->len) {
        size_t left = (size_t)(body->len - received.body_bytes);
        ssize_t more = receive(wire, bytes + received.body_bytes, left, left);
        if (more <= 0)
            break;
        received.body_bytes += more;
    }
    return received;
}

/* exchange(fileno, is_kept, request, buffer or None, num_bytes, silence_seconds, most_seconds) */
static PyObject *
exchange(PyObject *module, PyObject *args)
{
    (void)module;
    char head[MOST_HEAD_BYTES];
    Wire wire = {.piece_bytes = 1};
    PyObject *into, *result = NULL;
    Py_buffer request, body;
    Py_ssize_t num_bytes;
    int is_kept;
    if (!PyArg_ParseTuple(args, "ipy*Ondd", &wire.fd, &is_kept, &request, &into, &num_bytes, &wire.silence_seconds,
                          &wire.until_seconds))
        return NULL;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, into == Py_None ? num_bytes : 0);
    if (bytes == NULL || (into != Py_None && PyObject_GetBuffer(into, &body, PyBUF_WRITABLE) < 0))
        goto end;
    if (into == Py_None && PyBuffer_FillInfo(&body, bytes, PyBytes_AsString(bytes), num_bytes, 0, PyBUF_SIMPLE) < 0)
        goto end;
    if (is_kept && !is_idle(wire.fd)) {
        PyBuffer_Release(&body);
        result = Py_NewRef(Py_None);
        goto end;
    }
    wire.until_seconds += monotonic_seconds();
    wire.thread = PyEval_SaveThread();
    Received received = run_exchange(&wire, &request, head, &body);
    wake_after(&wire, 1);
    PyEval_RestoreThread(wire.thread);
    PyBuffer_Release(&body);
    if (PyErr_Occurred())
        goto end;
    if (wire.error == ETIMEDOUT)
        PyErr_SetString(PyExc_TimeoutError, "timed out");
    else if (wire.error != 0) {
        errno = wire.error;
        PyErr_SetFromErrno(PyExc_OSError);
    }
    else
        result = Py_BuildValue("y#nO", head, (Py_ssize_t)received.head_bytes, received.body_bytes, bytes);
end:
    PyBuffer_Release(&request);
    Py_XDECREF(bytes);
    return result;
}

static PyMethodDef methods[] = {
    {"exchange", exchange, METH_VARARGS,
     "Send a request, and receive its response; see `exchange_in_python`."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_exchange", NULL, 0, methods, slots, NULL, NULL, NULL};

PyMODINIT_FUNC
PyInit__exchange(void)
{
    return PyModuleDef_Init(&definition);
}
