/* Fields of tar headers for the compiled module, as `tar/header_fields.py` and `tar/names.py` read them. */
#ifndef SHOAL_TAR_HEADERS_H
#define SHOAL_TAR_HEADERS_H

#include <stdint.h>
#include <string.h>

#define BLOCK 512
#define NAME_BYTES 100
#define PREFIX_BYTES 155

/* The number in `count` octal digits; -1 if another byte is among them. */
static inline int64_t
octal(const unsigned char *digits, int count)
{
    int64_t value = 0;
    for (int i = 0; i < count; i++) {
        unsigned digit = (unsigned)digits[i] - '0';
        if (digit > 7)
            return -1;
        value = value << 3 | digit;
    }
    return value;
}

static inline int
is_end(unsigned char byte)
{
    return byte == 0 || byte == ' ';
}

/* The size that a header gives, if it is written as usual and the checksum is right; else -1. */
static inline int64_t
checked_size(const unsigned char *header)
{
    int64_t stated = octal(header + 148, 6);
    if (stated < 0 || !is_end(header[154]) || !is_end(header[155]) || !is_end(header[135]))
        return -1;
    /* Four sums of bytes in 16 bits each, of at most 64 * 2 * 255: a loop over bytes takes five times as long. */
    const uint64_t even = 0x00FF00FF00FF00FFu;
    uint64_t sums = 0, word;
    for (int i = 0; i < BLOCK; i += 8) {
        memcpy(&word, header + i, 8);
        sums += (word & even) + (word >> 8 & even);
    }
    uint32_t sum = 8 * ' ';
    for (; sums; sums >>= 16)
        sum += (uint32_t)(sums & 0xFFFF);
    for (int i = 148; i < 156; i++)
        sum -= header[i];
    return sum == (uint32_t)stated ? octal(header + 124, 11) : -1;
}

static inline int
holds(const char *bytes, Py_ssize_t length, const char *word)
{
    Py_ssize_t width = (Py_ssize_t)strlen(word);
    for (const char *at = bytes; length - (at - bytes) >= width; at++) {
        at = memchr(at, word[0], (size_t)(length - (at - bytes) - width + 1));
        if (at == NULL)
            return 0;
        if (memcmp(at, word, (size_t)width) == 0)
            return 1;
    }
    return 0;
}

/* Whether the records of a PAX header, `size` bytes, may give a name or a size: as `is_of_interest` says. */
static inline int
is_of_interest(const char *records, Py_ssize_t size)
{
    return holds(records, size, "path=") || holds(records, size, "size=") || holds(records, size, "GNU.sparse.");
}

/* The parts of a member's name: what stands before the first dot of its last part, and what stands behind it. */
typedef struct {
    const char *key, *suffix;
    Py_ssize_t key_length, suffix_length;
    char joined[PREFIX_BYTES + 1 + NAME_BYTES]; /* prefix, slash and name, where a header has a prefix */
} Name;

enum { UNUSUAL = 0, USUAL = 1, WITHOUT_EXTENSION = 2 };

/* Split the name in a header; UNUSUAL for what the twin must look at. */
static inline int
split_name(const char *header, Name *found)
{
    const char *name = header;
    Py_ssize_t length = (Py_ssize_t)strnlen(header, NAME_BYTES + 1);
    if (length > NAME_BYTES || length == 0)
        return UNUSUAL;
    if (header[345] && memcmp(header + 257, "ustar", 6) == 0) {
        Py_ssize_t before = (Py_ssize_t)strnlen(header + 345, PREFIX_BYTES);
        memcpy(found->joined, header + 345, (size_t)before);
        found->joined[before] = '/';
        memcpy(found->joined + before + 1, header, (size_t)length);
        name = found->joined;
        length += before + 1;
    }
    if (header[156] == 0 && name[length - 1] == '/') /* a directory of old archives */
        return UNUSUAL;
    if ((name[0] == '_' && length > 1 && name[1] == '_') || memchr(name, '\n', (size_t)length) != NULL)
        return UNUSUAL;
    Py_ssize_t last = length;
    while (last > 0 && name[last - 1] != '/')
        last--;
    const char *dot = memchr(name + last, '.', (size_t)(length - last));
    if (dot == NULL)
        return WITHOUT_EXTENSION;
    found->key = name;
    found->key_length = dot - name;
    found->suffix = dot + 1;
    found->suffix_length = length - found->key_length - 1;
    return found->key_length > last ? USUAL : UNUSUAL;
}

#endif
