/* Reads a file by io_uring and compares it with another one.
 *
 *   uring FILE EXPECTED   many reads of random places and lengths, several in flight; prints "ok SIZE",
 *                         or "missing: ..." if this system has no io_uring, or what is wrong
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { DEPTH = 16, ROUNDS = 200, MOST = 1 << 20 };

static int fail(const char *what)
{
    printf("%s (%s)\n", what, strerror(errno));
    return 1;
}

static uint64_t state = 1;

/* SplitMix64. */
static uint64_t below(uint64_t n)
{
    uint64_t x = state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (x ^ (x >> 31)) % n;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    int expected = open(argv[2], O_RDONLY), fd = open(argv[1], O_RDONLY);
    if (expected < 0 || fd < 0)
        return fail("open");
    off_t size = lseek(expected, 0, SEEK_END);
    unsigned char *wanted = mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, expected, 0);
    if (wanted == MAP_FAILED)
        return fail("mmap");

    struct io_uring_params params;
    memset(&params, 0, sizeof params);
    int ring = (int)syscall(SYS_io_uring_setup, DEPTH, &params);
    if (ring < 0) {
        printf("missing: %s\n", strerror(errno));
        return 0;
    }
    size_t entries = params.sq_off.array + params.sq_entries * sizeof(uint32_t);
    size_t results = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
    const int prot = PROT_READ | PROT_WRITE;
    char *sq = mmap(NULL, entries, prot, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    char *cq = mmap(NULL, results, prot, MAP_SHARED, ring, IORING_OFF_CQ_RING);
    struct io_uring_sqe *sqes = mmap(NULL, params.sq_entries * sizeof *sqes, prot, MAP_SHARED, ring,
                                     IORING_OFF_SQES);
    if (sq == MAP_FAILED || cq == MAP_FAILED || sqes == MAP_FAILED)
        return fail("mmap of the ring");
    uint32_t *sq_tail = (uint32_t *)(sq + params.sq_off.tail);
    uint32_t *sq_array = (uint32_t *)(sq + params.sq_off.array);
    uint32_t sq_mask = *(uint32_t *)(sq + params.sq_off.ring_mask);
    uint32_t *cq_head = (uint32_t *)(cq + params.cq_off.head);
    uint32_t *cq_tail = (uint32_t *)(cq + params.cq_off.tail);
    uint32_t cq_mask = *(uint32_t *)(cq + params.cq_off.ring_mask);
    struct io_uring_cqe *cqes = (struct io_uring_cqe *)(cq + params.cq_off.cqes);

    static unsigned char buffers[DEPTH][MOST];
    uint64_t offsets[DEPTH];
    uint32_t lengths[DEPTH];
    for (int round = 0; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < DEPTH; i++) {
            /* Some begin or end past the end of the file. */
            offsets[i] = round ? below((uint64_t)size + 10000) : (uint64_t)size * i / DEPTH;
            lengths[i] = round % 2 ? (uint32_t)below(5000) : (uint32_t)below(MOST);
            uint32_t slot = *sq_tail & sq_mask;
            struct io_uring_sqe *sqe = &sqes[slot];
            memset(sqe, 0, sizeof *sqe);
            sqe->opcode = IORING_OP_READ;
            sqe->fd = fd;
            sqe->addr = (uintptr_t)buffers[i];
            sqe->len = lengths[i];
            sqe->off = offsets[i];
            sqe->user_data = i;
            sq_array[slot] = slot;
            __atomic_store_n(sq_tail, *sq_tail + 1, __ATOMIC_RELEASE);
        }
        long sent = syscall(SYS_io_uring_enter, ring, DEPTH, DEPTH, IORING_ENTER_GETEVENTS, NULL, 0);
        if (sent != DEPTH)
            return fail("io_uring_enter");
        for (int done = 0; done < DEPTH; done++) {
            uint32_t head = *cq_head;
            if (head == __atomic_load_n(cq_tail, __ATOMIC_ACQUIRE))
                return fail("a read has not come back");
            const struct io_uring_cqe *cqe = &cqes[head & cq_mask];
            uint64_t at = offsets[cqe->user_data], len = lengths[cqe->user_data];
            uint64_t left = at < (uint64_t)size ? (uint64_t)size - at : 0;
            if (cqe->res < 0) {
                errno = -cqe->res;
                return fail("a read failed");
            }
            uint64_t got = (uint64_t)cqe->res;
            /* A short read is allowed, but not one of nothing. */
            if (got > len || got > left || (got == 0 && len && left))
                return fail("a read gives another number of bytes");
            if (got && memcmp(buffers[cqe->user_data], wanted + at, got))
                return fail("a read gives other bytes");
            __atomic_store_n(cq_head, head + 1, __ATOMIC_RELEASE);
        }
    }
    printf("ok %lld\n", (long long)size);
    return 0;
}
