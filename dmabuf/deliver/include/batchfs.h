/* A client of batchfs's descriptor service, in one header. docs/dmabuf.md is the protocol.
 *
 * Everything is static: include it where it is used. Needs Linux and C11, and nothing else.
 */
#ifndef BATCHFS_H
#define BATCHFS_H

#include <errno.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define BATCHFS_PROTOCOL 1
#define BATCHFS_REPLY 65536
#define BATCHFS_MOST_TENSORS 8
#define BATCHFS_MOST_AXES 16

/* One array inside of a batch. */
struct batchfs_tensor {
    char name[64];
    char dtype[24];
    int axes;
    uint64_t shape[BATCHFS_MOST_AXES];
    uint64_t strides[BATCHFS_MOST_AXES]; /* in bytes */
    uint64_t offset;                     /* from the start of the file */
};

/* A batch that was handed out. Close `fd` and unmap what was mapped before it is released. */
struct batchfs_batch {
    int fd; /* read-only */
    uint64_t lease;
    uint64_t size;
    int shared;
    char kind[16]; /* "memfd" or "dmabuf" */
    int tensors;
    struct batchfs_tensor tensor[BATCHFS_MOST_TENSORS];
};

/* Connects to the service of the mount at this folder; -1 with errno if there is none. */
static inline int batchfs_connect(const char *mount) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char link[4096];
    if (snprintf(link, sizeof link, "%s/.batchfs/service.sock", mount) >= (int)sizeof link) {
        errno = ENAMETOOLONG;
        return -1;
    }
    /* The link's own path may be longer than an address. */
    ssize_t n = readlink(link, address.sun_path, sizeof address.sun_path - 1);
    if (n < 0) return -1;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) < 0) {
        int why = errno;
        close(fd);
        errno = why;
        return -1;
    }
    return fd;
}

/* Where the value of `key` begins in `json`, before `end`. The service's replies have no spaces
 * and no other use of a key's text with its quotes and colon, as names in them are escaped. */
static inline const char *batchfs_find(const char *json, const char *end, const char *key) {
    char quoted[40];
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    const char *at = strstr(json, quoted);
    return at && at < end ? at + strlen(quoted) : NULL;
}

static inline uint64_t batchfs_number(const char *json, const char *end, const char *key) {
    const char *at = batchfs_find(json, end, key);
    return at ? strtoull(at, NULL, 10) : 0;
}

static inline void batchfs_text(const char *json, const char *end, const char *key, char *into,
                                size_t room) {
    const char *at = batchfs_find(json, end, key);
    size_t n = 0;
    if (at && *at == '"')
        for (at++; at < end && *at != '"' && n + 1 < room; at++) {
            if (*at == '\\' && at + 1 < end) at++;
            into[n++] = *at;
        }
    into[n] = 0;
}

static inline int batchfs_numbers(const char *json, const char *end, const char *key,
                                  uint64_t *into) {
    const char *at = batchfs_find(json, end, key);
    int n = 0;
    if (!at || *at != '[') return 0;
    for (at++; at < end && *at != ']' && n < BATCHFS_MOST_AXES; n++) {
        char *next;
        into[n] = strtoull(at, &next, 10);
        if (next == at) return n;
        at = *next == ',' ? next + 1 : next;
    }
    return n;
}

/* The next reply: its length, 0 at the end, -1 with errno. `*fd` is a descriptor or -1. */
static inline ssize_t batchfs_receive(int service, char *reply, int *fd) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec part = {reply, BATCHFS_REPLY - 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    ssize_t n;
    do n = recvmsg(service, &message, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    *fd = -1;
    if (n <= 0) return n;
    reply[n] = 0;
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    if (rights && rights->cmsg_type == SCM_RIGHTS) memcpy(fd, CMSG_DATA(rights), sizeof *fd);
    return n;
}

/* Writes `text` as the inside of a JSON string, which is cut if there is no room. */
static inline void batchfs_quote(const char *text, char *into, size_t room) {
    size_t n = 0;
    for (; text && *text && n + 7 < room; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 0x20)
            n += (size_t)snprintf(into + n, room - n, "\\u%04x", c);
        else {
            if (c == '"' || c == '\\') into[n++] = '\\';
            into[n++] = *text;
        }
    }
    into[n] = 0;
}

/* Gives a lease back; asks for no reply. */
static inline int batchfs_give_back(int service, uint64_t lease) {
    char request[128];
    int n = snprintf(request, sizeof request,
                     "{\"version\":%d,\"op\":\"release\",\"release\":[%" PRIu64 "]}",
                     BATCHFS_PROTOCOL, lease);
    return send(service, request, n, MSG_NOSIGNAL) == n ? 0 : -1;
}

/* Gets the batch of a step. `view` and `face` may be NULL. 0, or -1 with errno and the reason in
 * `why`, which may be NULL. One request at a time: replies are taken in the order in which they come. */
static inline int batchfs_export(int service, const char *view, const char *stream, uint64_t step,
                                 const char *face, struct batchfs_batch *batch, char *why,
                                 size_t room) {
    char request[4096], names[3][2048], *reply = malloc(BATCHFS_REPLY);
    if (!reply) return -1;
    batchfs_quote(view, names[0], sizeof names[0]);
    batchfs_quote(stream, names[1], sizeof names[1]);
    batchfs_quote(face, names[2], sizeof names[2]);
    int n = snprintf(request, sizeof request,
                     "{\"version\":%d,\"id\":1,\"op\":\"export\",\"view\":\"%s\",\"stream\":\"%s\","
                     "\"step\":%" PRIu64 ",\"face\":\"%s\"}",
                     BATCHFS_PROTOCOL, names[0], names[1], step, names[2]);
    ssize_t got = -1;
    memset(batch, 0, sizeof *batch);
    batch->fd = -1;
    if (n >= (int)sizeof request)
        errno = E2BIG;
    else if (send(service, request, n, MSG_NOSIGNAL) == n)
        got = batchfs_receive(service, reply, &batch->fd);
    if (got == 0) errno = ECONNRESET;
    if (got > 0 && batch->fd < 0 && batchfs_find(reply, reply + got, "lease")) {
        /* The kernel could not give the descriptor to this process. */
        batchfs_give_back(service, batchfs_number(reply, reply + got, "lease"));
        errno = EMFILE;
    } else if (got > 0 && batch->fd < 0) {
        errno = (int)batchfs_number(reply, reply + got, "code");
        if (why && room) batchfs_text(reply, reply + got, "message", why, room);
        why = NULL;
    }
    if (batch->fd < 0) {
        int code = errno;
        if (why && room) snprintf(why, room, "%s", strerror(code));
        free(reply);
        errno = code;
        return -1;
    }
    const char *end = reply + got;
    batch->lease = batchfs_number(reply, end, "lease");
    batch->size = batchfs_number(reply, end, "size");
    const char *shared = batchfs_find(reply, end, "shared");
    batch->shared = shared && *shared == 't';
    batchfs_text(reply, end, "kind", batch->kind, sizeof batch->kind);
    const char *at = batchfs_find(reply, end, "tensors");
    while (at && batch->tensors < BATCHFS_MOST_TENSORS && (at = batchfs_find(at, end, "name"))) {
        struct batchfs_tensor *one = &batch->tensor[batch->tensors++];
        at -= strlen("\"name\":");
        batchfs_text(at, end, "name", one->name, sizeof one->name);
        batchfs_text(at, end, "dtype", one->dtype, sizeof one->dtype);
        one->axes = batchfs_numbers(at, end, "shape", one->shape);
        batchfs_numbers(at, end, "strides", one->strides);
        one->offset = batchfs_number(at, end, "offset");
        at += strlen("\"name\":");
    }
    free(reply);
    return 0;
}

/* Closes the descriptor and gives the batch back. No mapping of it is left then, and no page of it
 * in a pipe, a socket or a device: its memory may be filled again. */
static inline int batchfs_release(int service, struct batchfs_batch *batch) {
    close(batch->fd);
    batch->fd = -1;
    return batchfs_give_back(service, batch->lease);
}

#endif
