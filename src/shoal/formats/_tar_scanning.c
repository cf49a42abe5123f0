/* Samples of a tar found from its headers: the compiled twin of `HeaderWalk.step` and `Grouping.add`, for plain members.
 *
 * It follows the chain of members up to the first that is unusual or wrong in any way, which its twins then read, and
 * refuse with a reason if they must. So no rule and no error stands here alone. The interpreter's lock is not held.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdlib.h>

#include "_tar_headers.h"

#define MOST_SEEN 32    /* suffixes of a sample */
#define SEEN_BYTES 24   /* of a suffix */
#define MOST_EXTENDED 65536 /* bytes of a PAX header that holds times */

/* The sample that the latest member belongs to, as `Grouping` keeps it. */
typedef struct {
    const char *key;
    Py_ssize_t key_length;
    char own_key[PREFIX_BYTES + 1 + NAME_BYTES];
    int num_seen;
    Py_ssize_t seen_lengths[MOST_SEEN];
    char seen[MOST_SEEN][SEEN_BYTES];
    int64_t end;                     /* of its latest member, in the shard */
    uint32_t crc, crc_with_gap, gap; /* of its headers; with those of members that belong to no sample; of those alone */
    int has_begun;
} Group;

/* The members of a buffer. */
typedef struct {
    const char *data;
    int64_t held, first_byte, limit;
    int64_t position, newest, num_members;
    int64_t *starts;
    uint32_t *crcs;
    int64_t num_starts, num_crcs;
} Walk;

static uint32_t tables[8][256];

static void
make_tables(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
        tables[0][byte] = crc;
    }
    for (int table = 1; table < 8; table++)
        for (int byte = 0; byte < 256; byte++)
            tables[table][byte] = tables[table - 1][byte] >> 8 ^ tables[0][tables[table - 1][byte] & 255];
}

/* The CRC-32 of zlib over whole blocks of 8 bytes, continued from `crc`. */
static uint32_t
crc32_of(const char *data, int64_t num_bytes, uint32_t crc)
{
    const unsigned char *at = (const unsigned char *)data;
    crc = ~crc;
    for (int64_t i = 0; i < num_bytes; i += 8, at += 8) {
        crc ^= (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        crc = tables[7][crc & 255] ^ tables[6][crc >> 8 & 255] ^ tables[5][crc >> 16 & 255] ^ tables[4][crc >> 24] ^
              tables[3][at[4]] ^ tables[2][at[5]] ^ tables[1][at[6]] ^ tables[0][at[7]];
    }
    return ~crc;
}

/* Lower the case of a suffix; 0 if it is not short and ASCII, or a name that WebDataset keeps for itself. */
static int
lowered(const char *suffix, Py_ssize_t length, char *lower)
{
    if (length > SEEN_BYTES)
        return 0;
    for (Py_ssize_t i = 0; i < length; i++) {
        unsigned char byte = (unsigned char)suffix[i];
        if (byte >= 128)
            return 0;
        lower[i] = (char)(byte >= 'A' && byte <= 'Z' ? byte + 32 : byte);
    }
    return length != 7 || (memcmp(lower, "__key__", 7) != 0 && memcmp(lower, "__url__", 7) != 0);
}

static int
has_seen(const Group *group, const char *suffix, Py_ssize_t length)
{
    for (int i = 0; i < group->num_seen; i++)
        if (group->seen_lengths[i] == length && memcmp(group->seen[i], suffix, (size_t)length) == 0)
            return 1;
    return 0;
}

/* Begin a sample with this key; return the CRC of the headers of members between it and the sample before. */
static uint32_t
begin_sample(Group *group, Walk *walk, int64_t start, const Name *name)
{
    memcpy(group->own_key, name->key, (size_t)name->key_length);
    group->key = group->own_key;
    group->key_length = name->key_length;
    group->num_seen = 0;
    walk->starts[walk->num_starts++] = group->has_begun ? group->end : walk->first_byte + start;
    if (!group->has_begun) {
        group->has_begun = 1;
        return 0;
    }
    walk->crcs[walk->num_crcs++] = group->crc;
    return group->gap;
}

/* Put a member with the headers [start, end) into its sample; 0 if the twin must do so. */
static int
add_member(Group *group, Walk *walk, int64_t start, int64_t end, const Name *name)
{
    char lower[SEEN_BYTES];
    int is_same = group->key != NULL && name->key_length == group->key_length &&
                  memcmp(name->key, group->key, (size_t)name->key_length) == 0;
    if (!lowered(name->suffix, name->suffix_length, lower))
        return 0;
    if (is_same && (group->num_seen == MOST_SEEN || has_seen(group, lower, name->suffix_length)))
        return 0;
    uint32_t crc = is_same ? group->crc_with_gap : begin_sample(group, walk, start, name);
    memcpy(group->seen[group->num_seen], lower, (size_t)name->suffix_length);
    group->seen_lengths[group->num_seen++] = name->suffix_length;
    group->crc = group->crc_with_gap = crc32_of(walk->data + start, end - start, crc);
    group->gap = 0;
    return 1;
}

static int
is_plain(const char *header)
{
    if (header[156] != '0' && header[156] != 0 && header[156] != '7')
        return 0;
    /* An old way to write "ustar" that the twin takes for a prefix. */
    return !header[345] || memcmp(header + 257, "ustar", 5) != 0 || header[262] == 0 || header[262] == ' ';
}

/* Follow the chain; `walk->position` moves behind the last plain member whose headers are in the buffer. */
static void
follow(Walk *walk, Group *group)
{
    Name name;
    for (;;) {
        int64_t start = walk->position, headers = start, size;
        if (start + BLOCK > walk->held)
            return;
        size = checked_size((const unsigned char *)walk->data + headers);
        if (size >= 0 && walk->data[headers + 156] == 'x') {
            if (size > MOST_EXTENDED || headers + BLOCK + size > walk->held)
                return;
            if (is_of_interest(walk->data + headers + BLOCK, (Py_ssize_t)size))
                return;
            headers += BLOCK + ((size + BLOCK - 1) & -BLOCK);
            if (headers + BLOCK > walk->held)
                return;
            size = checked_size((const unsigned char *)walk->data + headers);
        }
        const char *header = walk->data + headers;
        if (size < 0 || size > walk->limit - headers || !is_plain(header) || split_name(header, &name) != USUAL)
            return;
        int64_t next = headers + BLOCK + ((size + BLOCK - 1) & -BLOCK);
        if (next > walk->limit || !add_member(group, walk, start, headers + BLOCK, &name))
            return;
        group->end = walk->first_byte + next;
        walk->newest = headers;
        walk->position = next;
        walk->num_members++;
    }
}

/* The suffixes of a sample, each before a NUL; NULL with an error. */
static PyObject *
seen_as_bytes(const Group *group)
{
    char joined[MOST_SEEN * (SEEN_BYTES + 1)];
    Py_ssize_t length = 0;
    for (int i = 0; i < group->num_seen; i++) {
        memcpy(joined + length, group->seen[i], (size_t)group->seen_lengths[i]);
        length += group->seen_lengths[i];
        joined[length++] = 0;
    }
    return PyBytes_FromStringAndSize(joined, length);
}

/* Fill the suffixes from bytes; 0 if they are too many or too long. */
static int
seen_from_bytes(Group *group, const char *joined, Py_ssize_t length)
{
    for (Py_ssize_t at = 0; at < length;) {
        const char *end = memchr(joined + at, 0, (size_t)(length - at));
        Py_ssize_t width = end == NULL ? SEEN_BYTES + 1 : end - (joined + at);
        if (width > SEEN_BYTES || group->num_seen == MOST_SEEN)
            return 0;
        memcpy(group->seen[group->num_seen], joined + at, (size_t)width);
        group->seen_lengths[group->num_seen++] = width;
        at += width + 1;
    }
    return 1;
}

static PyObject *
result_of(const Walk *walk, const Group *group)
{
    PyObject *seen = seen_as_bytes(group);
    if (seen == NULL)
        return NULL;
    return Py_BuildValue(
        "(LLLy#y#y#NLk)", (long long)walk->position, (long long)walk->num_members, (long long)walk->newest,
        (const char *)walk->starts, (Py_ssize_t)(8 * walk->num_starts), (const char *)walk->crcs,
        (Py_ssize_t)(4 * walk->num_crcs), group->key, group->key_length, seen, (long long)group->end,
        (unsigned long)group->crc);
}

/* tar_borders(buffer, first_byte, limit, (key, seen, end, crc, crc_with_gap, gap, has_begun)) */
PyObject *
tar_borders(PyObject *module, PyObject *const *args, Py_ssize_t num_args)
{
    (void)module;
    Py_buffer view;
    Walk walk = {0};
    Group group = {0};
    const char *seen;
    Py_ssize_t seen_length;
    long long end;
    unsigned long crc, crc_with_gap, gap;
    if (num_args != 4 || !PyTuple_Check(args[3])) {
        PyErr_SetString(PyExc_TypeError, "tar_borders(buffer, first_byte: int, limit: int, group: tuple)");
        return NULL;
    }
    if (!PyArg_ParseTuple(args[3], "z#y#Lkkkp", &group.key, &group.key_length, &seen, &seen_length, &end, &crc,
                          &crc_with_gap, &gap, &group.has_begun))
        return NULL;
    walk.first_byte = PyLong_AsLongLong(args[1]);
    walk.limit = PyLong_AsLongLong(args[2]);
    if (PyErr_Occurred() || PyObject_GetBuffer(args[0], &view, PyBUF_SIMPLE))
        return NULL;
    group.end = end;
    group.crc = (uint32_t)crc;
    group.crc_with_gap = (uint32_t)crc_with_gap;
    group.gap = (uint32_t)gap;
    walk.data = view.buf;
    walk.held = view.len;
    PyObject *result = NULL;
    size_t most = (size_t)view.len / BLOCK + 1;
    walk.starts = malloc(most * sizeof *walk.starts);
    walk.crcs = malloc(most * sizeof *walk.crcs);
    if (walk.starts == NULL || walk.crcs == NULL)
        PyErr_NoMemory();
    else {
        if (!tables[0][1])
            make_tables();
        if (seen_from_bytes(&group, seen, seen_length)) {
            Py_BEGIN_ALLOW_THREADS;
            follow(&walk, &group);
            Py_END_ALLOW_THREADS;
        }
        if (walk.num_members)
            result = result_of(&walk, &group);
        else
            result = Py_NewRef(Py_None);
    }
    free(walk.starts);
    free(walk.crcs);
    PyBuffer_Release(&view);
    return result;
}
