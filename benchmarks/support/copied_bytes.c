/* Counts the bytes that a process copies in memory: what memcpy and memmove are asked for, from 4 KiB on.
 *
 *   cc -shared -fPIC -O2 copied_bytes.c -o copied_bytes.so && LD_PRELOAD=./copied_bytes.so python ...
 *
 * A program that is loaded with it finds the sum in `copied_bytes`. Only calls between objects are seen, such as Python's and
 * OpenSSL's own; what the C library copies by itself, or the kernel, is not.
 */
#include <stddef.h>

#define COUNTED_BYTES_MIN 4096

unsigned long copied_bytes;

static void *copy(void *to, const void *from, size_t size)
{
    /* `rep movsb` is the processor's own copy. A loop would be compiled into a call of this very function. */
    void *target = to;
    if (size >= COUNTED_BYTES_MIN)
        __atomic_fetch_add(&copied_bytes, size, __ATOMIC_RELAXED);
#if defined(__x86_64__)
    __asm__ volatile("rep movsb" : "+D"(target), "+S"(from), "+c"(size) : : "memory");
#else
    for (size_t at = 0; at < size; at++)
        ((volatile char *)target)[at] = ((const volatile char *)from)[at];
#endif
    return to;
}

void *memcpy(void *restrict to, const void *restrict from, size_t size)
{
    return copy(to, from, size);
}

void *__memcpy_chk(void *restrict to, const void *restrict from, size_t size, size_t room)
{
    (void)room;
    return copy(to, from, size);
}

void *memmove(void *to, const void *from, size_t size)
{
    char *target = to;
    const char *source = from;
    if (target <= source || target >= source + size)
        return copy(to, from, size);
    if (size >= COUNTED_BYTES_MIN)
        __atomic_fetch_add(&copied_bytes, size, __ATOMIC_RELAXED);
    while (size--)
        ((volatile char *)target)[size] = source[size];
    return to;
}

void *__memmove_chk(void *to, const void *from, size_t size, size_t room)
{
    (void)room;
    return memmove(to, from, size);
}
