/* A stand-in for AMD's HIP runtime, for tests on machines without a GPU.
 *
 * It has the functions that batchfs loads and behaves as the real one does where that matters: it
 * imports descriptors of "its own driver" alone and refuses all others; device addresses cannot be read
 * by the processor (they are mapped without any right); work is done when somebody waits for it. Its
 * device is memory of this process, so it says nothing about real hardware.
 *
 * "Its own driver" are the memfds of batchfs' stand-in node (BATCHFS_RENDER_NODE=stand-in), which it
 * knows by their name, and its own hipMalloc's.
 *
 * Built with -DDEVICES=N, -DVERSION=N, and to lack functions as older runtimes do: -DOLD (no external
 * memory), -DNO_EXPORT (no dma-bufs of allocations), -DBARE (none of the optional ones).
 *
 * Functions standin_* are for the tests.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef DEVICES
#define DEVICES 2
#endif
#ifndef VERSION
#define VERSION 60241134
#endif
#define NAME "batchfs-stand-in-node"

enum { SUCCESS = 0, INVALID = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101 };

struct buffer { /* an allocation, or a mapped import */
    struct buffer *next;
    char *at; /* address space without rights */
    size_t len;
    int fd;
    off_t offset;
};
struct import {
    int fd;
    size_t len;
};
struct work {
    struct work *next;
    char *at;
    size_t len;
    int is_write;
    unsigned char value;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct buffer *buffers;
static struct work *queue;
static uint64_t result;
static long imports, mappings, waits, registered, initialized;
static __thread int device, last_error;

static void say(const char *what) {
    const char *path = getenv("STANDIN_HIP_LOG");
    if (!path) return;
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    char line[512];
    int n = snprintf(line, sizeof line, "%s\n", what);
    if (fd >= 0) {
        if (write(fd, line, (size_t)n) < 0) perror(path);
        close(fd);
    }
}

static int answer(int code) {
    if (code) last_error = code;
    return code;
}

__attribute__((constructor)) static void loaded(void) {
    say("loaded " LABEL);
}

static struct buffer *find(const void *p) {
    for (struct buffer *b = buffers; b; b = b->next)
        if ((const char *)p >= b->at && (const char *)p < b->at + b->len) return b;
    return NULL;
}

static struct buffer *add(int fd, size_t len, off_t offset) {
    struct buffer *b = calloc(1, sizeof *b);
    /* At a page, and the page's rest is nobody's. */
    void *at = mmap(NULL, len, PROT_NONE, MAP_SHARED, fd, offset);
    if (!b || at == MAP_FAILED) {
        free(b);
        return NULL;
    }
    *b = (struct buffer){buffers, at, len, fd, offset};
    return buffers = b;
}

static void run_queue(void) {
    while (queue) {
        struct work *w = queue;
        queue = w->next;
        struct buffer *b = find(w->at);
        unsigned char *bytes = malloc(w->len);
        if (b && bytes) {
            off_t from = b->offset + (w->at - b->at);
            if (w->is_write) {
                memset(bytes, w->value, w->len);
                if (pwrite(b->fd, bytes, w->len, from) < 0) perror("stand-in");
            } else if (pread(b->fd, bytes, w->len, from) == (ssize_t)w->len) {
                result = 0;
                for (size_t i = 0; i < w->len; i++) result = result * 31 + bytes[i];
            }
        }
        free(bytes);
        free(w);
    }
}

int hipInit(unsigned flags) {
    if (flags) return answer(INVALID);
    initialized = 1;
    return answer(DEVICES ? SUCCESS : INVALID_DEVICE);
}

const char *hipGetErrorString(int code) {
    switch (code) {
    case SUCCESS: return "no error";
    case INVALID: return "invalid argument";
    case OUT_OF_MEMORY: return "out of memory";
    case NOT_INITIALIZED: return "initialization error";
    case NO_DEVICE: return "no ROCm-capable device is detected";
    case INVALID_DEVICE: return "invalid device ordinal";
    default: return "unknown error";
    }
}

int hipGetDeviceCount(int *count) {
    *count = DEVICES;
    return answer(DEVICES ? SUCCESS : NO_DEVICE);
}

int hipGetDevice(int *out) {
    *out = device;
    return SUCCESS;
}

int hipSetDevice(int id) {
    if (id < 0 || id >= DEVICES) return answer(INVALID_DEVICE);
    device = id;
    return SUCCESS;
}

int hipDeviceGetPCIBusId(char *out, int len, int id) {
    if (id < 0 || id >= DEVICES || len < 13) return answer(INVALID);
    snprintf(out, (size_t)len, "0000:%02X:00.0", 0xc0 + id);
    return SUCCESS;
}

int hipDeviceSynchronize(void) {
    pthread_mutex_lock(&lock);
    waits++;
    run_queue();
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

struct handle_desc {
    int type;
    union {
        int fd;
        void *win32[2];
    } handle;
    unsigned long long size;
    unsigned flags;
};
struct buffer_desc {
    unsigned long long offset, size;
    unsigned flags;
};

#ifndef OLD
int hipImportExternalMemory(void **out, const struct handle_desc *desc) {
    char link[64], path[256];
    struct stat st;
    if (!out || !desc || desc->type != 1 || desc->flags) return answer(INVALID);
    snprintf(link, sizeof link, "/proc/self/fd/%d", desc->handle.fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    path[n < 0 ? 0 : n] = 0;
    int ours = strstr(path, "/memfd:" NAME) == path;
    /* As ROCm: a buffer that its own driver did not make is an invalid argument. */
    if (!ours || fstat(desc->handle.fd, &st) || (unsigned long long)st.st_size < desc->size) return answer(INVALID);
    struct import *made = malloc(sizeof *made);
    if (!made) return answer(OUT_OF_MEMORY);
    made->fd = fcntl(desc->handle.fd, F_DUPFD_CLOEXEC, 0);
    made->len = desc->size;
    /* CUDA's document says that the descriptor is the runtime's from now on. */
    if (getenv("STANDIN_HIP_OWNS_FD")) close(desc->handle.fd);
    __atomic_add_fetch(&imports, 1, __ATOMIC_SEQ_CST);
    *out = made;
    return SUCCESS;
}

int hipExternalMemoryGetMappedBuffer(void **out, void *memory, const struct buffer_desc *desc) {
    struct import *import = memory;
    if (!out || !import || !desc || desc->flags || desc->offset + desc->size > import->len) return answer(INVALID);
    pthread_mutex_lock(&lock);
    int fd = fcntl(import->fd, F_DUPFD_CLOEXEC, 0);
    struct buffer *b = add(fd, desc->size, (off_t)desc->offset);
    if (b) mappings++;
    pthread_mutex_unlock(&lock);
    if (!b) return answer(OUT_OF_MEMORY);
    *out = b->at;
    return SUCCESS;
}

int hipDestroyExternalMemory(void *memory) {
    struct import *import = memory;
    if (!import) return answer(INVALID);
    close(import->fd);
    free(import);
    __atomic_sub_fetch(&imports, 1, __ATOMIC_SEQ_CST);
    return SUCCESS;
}
#endif

int hipFree(void *p) {
    pthread_mutex_lock(&lock);
    run_queue();
    struct buffer **at = &buffers, *b = NULL;
    while (*at && (*at)->at != p) at = &(*at)->next;
    if ((b = *at)) {
        *at = b->next;
        mappings--;
        munmap(b->at, b->len);
        close(b->fd);
        free(b);
    }
    pthread_mutex_unlock(&lock);
    return answer(b || !p ? SUCCESS : INVALID);
}

#ifndef BARE
int hipRuntimeGetVersion(int *out) {
    *out = VERSION;
    return SUCCESS;
}

int hipGetLastError(void) {
    int was = last_error;
    last_error = SUCCESS;
    return was;
}

int hipMemcpy(void *to, const void *from, size_t len, int kind) {
    pthread_mutex_lock(&lock);
    run_queue();
    struct buffer *b = kind == 2 ? find(from) : NULL;
    int done = b && pread(b->fd, to, len, b->offset + ((const char *)from - b->at)) == (ssize_t)len;
    pthread_mutex_unlock(&lock);
    say("hipMemcpy");
    return answer(done ? SUCCESS : INVALID);
}

int hipHostRegister(void *p, size_t len, unsigned flags) {
    (void)flags;
    if (!p || !len || getenv("STANDIN_HIP_NO_REGISTER")) return answer(INVALID);
    __atomic_add_fetch(&registered, 1, __ATOMIC_SEQ_CST);
    return SUCCESS;
}

int hipHostUnregister(void *p) {
    if (!p) return answer(INVALID);
    __atomic_sub_fetch(&registered, 1, __ATOMIC_SEQ_CST);
    return SUCCESS;
}

#ifndef NO_EXPORT
int hipMemGetAddressRange(void **base, size_t *len, void *p) {
    pthread_mutex_lock(&lock);
    struct buffer *b = find(p);
    if (b) {
        *base = b->at;
        *len = b->len;
    }
    pthread_mutex_unlock(&lock);
    return answer(b ? SUCCESS : INVALID);
}

int hipMemGetHandleForAddressRange(void *out, void *p, size_t len, int kind, unsigned long long flags) {
    pthread_mutex_lock(&lock);
    struct buffer *b = find(p);
    int fd = -1;
    if (b && kind == 1 && !flags && len && (char *)p == b->at) fd = fcntl(b->fd, F_DUPFD_CLOEXEC, 0);
    pthread_mutex_unlock(&lock);
    if (fd < 0) return answer(INVALID);
    *(int *)out = fd;
    say("exported");
    return SUCCESS;
}
#endif
#endif

/* An allocation on the device. With STANDIN_HIP_FRAGMENT it is a part of a larger one, as small ones of
 * the real runtime's are. */
int hipMalloc(void **out, size_t len) {
    off_t offset = getenv("STANDIN_HIP_FRAGMENT") ? 65536 : 0;
    int fd = memfd_create(NAME, MFD_CLOEXEC);
    size_t whole = (len + 4095) / 4096 * 4096;
    if (fd < 0 || ftruncate(fd, offset * 2 + (off_t)whole)) return answer(OUT_OF_MEMORY);
    pthread_mutex_lock(&lock);
    struct buffer *b = add(fd, len, offset);
    if (b) mappings++;
    pthread_mutex_unlock(&lock);
    if (!b) return answer(OUT_OF_MEMORY);
    *out = b->at;
    return SUCCESS;
}

/* What the device does at once. */
int standin_write(void *p, const void *from, size_t len) {
    pthread_mutex_lock(&lock);
    struct buffer *b = find(p);
    int done = b && pwrite(b->fd, from, len, b->offset + ((char *)p - b->at)) == (ssize_t)len;
    pthread_mutex_unlock(&lock);
    return !done;
}

int standin_read(const void *p, void *into, size_t len) {
    pthread_mutex_lock(&lock);
    struct buffer *b = find(p);
    int done = b && pread(b->fd, into, len, b->offset + ((const char *)p - b->at)) == (ssize_t)len;
    pthread_mutex_unlock(&lock);
    return !done;
}

static int launch(struct work w) {
    struct work *made = malloc(sizeof *made), **end = &queue;
    if (!made) return 1;
    *made = w;
    pthread_mutex_lock(&lock);
    while (*end) end = &(*end)->next;
    *end = made;
    pthread_mutex_unlock(&lock);
    return 0;
}

/* Work that the device does when somebody waits for it: a sum of bytes, or filling. */
int standin_launch_sum(void *p, size_t len) {
    return launch((struct work){NULL, p, len, 0, 0});
}

int standin_launch_fill(void *p, size_t len, int value) {
    return launch((struct work){NULL, p, len, 1, (unsigned char)value});
}

uint64_t standin_result(void) {
    return result;
}

/* imports, mappings, waits, registered ranges, this thread's last error */
void standin_counts(long out[5]) {
    out[0] = imports;
    out[1] = mappings;
    out[2] = waits;
    out[3] = registered;
    out[4] = last_error;
}
