/* A file system that fails or is slow, for tests: preloaded, it stands between a process and libc.

   Operations on paths below a prefix are counted; all processes that were forked after fault_arm() share the count.
   Operation number `at` fails with `code`. If it is `sticky`, so does every later one, and a write that is the first to
   fail still takes half of its bytes, as on a disk that fills up. With FAULT_PREFIX and FAULT_DELAY_US in the environment
   every operation below the prefix, looking included, takes that long. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

struct state { char prefix[512]; volatile long count; long at; int code; int sticky; char what[700]; };
static struct state *shared;
static char slow_prefix[512];
static long delay_us;

__attribute__((constructor)) static void begin(void) {
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const char *prefix = getenv("FAULT_PREFIX"), *us = getenv("FAULT_DELAY_US");
    if (prefix && us) { snprintf(slow_prefix, sizeof slow_prefix, "%s", prefix); delay_us = atol(us); }
}

void fault_arm(const char *prefix, long at, int code, int sticky) {
    shared->count = 0; shared->at = at; shared->code = code; shared->sticky = sticky; shared->what[0] = 0;
    snprintf(shared->prefix, sizeof shared->prefix, "%s", prefix);
}
long fault_count(void) { return shared->count; }
const char *fault_what(void) { return shared->what; }

static int below(const char *path, const char *prefix) {
    if (!path || !*prefix) return 0;
    char full[1400];
    if (*path != '/') {
        char here[600];
        if (!getcwd(here, sizeof here)) return 0;
        snprintf(full, sizeof full, "%s/%s", here, path);
        path = full;
    }
    return strncmp(path, prefix, strlen(prefix)) == 0;
}

/* 0: go on. 1: fail, errno is set. 2: the first to fail of a disk that is full from now on. */
static int met(const char *operation, const char *path) {
    if (!shared || shared == MAP_FAILED || !below(path, shared->prefix)) return 0;
    long mine = __atomic_add_fetch(&shared->count, 1, __ATOMIC_SEQ_CST);
    if (!shared->at || (shared->sticky ? mine < shared->at : mine != shared->at)) return 0;
    if (mine == shared->at) snprintf(shared->what, sizeof shared->what, "%s %.600s", operation, path);
    errno = shared->code;
    return mine == shared->at && shared->sticky ? 2 : 1;
}

static void slow(const char *path) { if (delay_us && below(path, slow_prefix)) usleep(delay_us); }

static const char *name_of(int fd, char *into, size_t size) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, into, size - 1);
    if (n <= 0) return NULL;
    into[n] = 0;
    return into;
}
static const char *joined(int folder, const char *path, char *into, size_t size) {
    if (!path || *path == '/' || folder == AT_FDCWD) return path;
    char base[600];
    if (!name_of(folder, base, sizeof base)) return path;
    snprintf(into, size, "%s/%s", base, path);
    return into;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define CREATES(flags) (((flags) & O_ACCMODE) != O_RDONLY && ((flags) & (O_CREAT | O_TRUNC)))

#define OPEN(name)                                                          \
    int name(const char *path, int flags, ...) {                            \
        va_list list; va_start(list, flags);                                \
        mode_t mode = va_arg(list, mode_t); va_end(list);                   \
        slow(path);                                                         \
        if (CREATES(flags) && met("open", path)) return -1;                 \
        return REAL(name)(path, flags, mode);                               \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                        \
    int name(int folder, const char *path, int flags, ...) {                \
        va_list list; va_start(list, flags);                                \
        mode_t mode = va_arg(list, mode_t); va_end(list);                   \
        char text[1300]; const char *full = joined(folder, path, text, sizeof text); \
        slow(full);                                                         \
        if (CREATES(flags) && met("open", full)) return -1;                 \
        return REAL(name)(folder, path, flags, mode);                       \
    }
OPENAT(openat)
OPENAT(openat64)

#define ON_FD(operation, fd)                                                \
    char text[700]; const char *path = name_of(fd, text, sizeof text);      \
    slow(path);                                                             \
    int fate = met(operation, path);                                        \
    if (fate == 1) return -1;

ssize_t write(int fd, const void *data, size_t size) {
    if (fd <= 2) return REAL(write)(fd, data, size);
    ON_FD("write", fd)
    if (fate && size < 2) return -1;
    return REAL(write)(fd, data, fate ? size / 2 : size);
}
#define PWRITE(name, type)                                                  \
    ssize_t name(int fd, const void *data, size_t size, type at) {          \
        ON_FD("write", fd)                                                  \
        if (fate && size < 2) return -1;                                    \
        return REAL(name)(fd, data, fate ? size / 2 : size, at);            \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)
ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (fd <= 2) return REAL(writev)(fd, parts, count);
    ON_FD("write", fd)
    if (fate) return -1;
    return REAL(writev)(fd, parts, count);
}
ssize_t sendfile(int out, int in, off_t *offset, size_t size);
ssize_t sendfile(int out, int in, off_t *offset, size_t size) {
    ON_FD("write", out)
    if (fate) return -1;
    return REAL(sendfile)(out, in, offset, size);
}
ssize_t sendfile64(int out, int in, off64_t *offset, size_t size);
ssize_t sendfile64(int out, int in, off64_t *offset, size_t size) {
    ON_FD("write", out)
    if (fate) return -1;
    return REAL(sendfile64)(out, in, offset, size);
}
ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t size, unsigned int flags) {
    ON_FD("write", out)
    if (fate) return -1;
    return REAL(copy_file_range)(in, from, out, to, size, flags);
}
int fsync(int fd) { ON_FD("fsync", fd) if (fate) return -1; return REAL(fsync)(fd); }
int fdatasync(int fd) { ON_FD("fsync", fd) if (fate) return -1; return REAL(fdatasync)(fd); }
int posix_fallocate(int fd, off_t at, off_t size) {
    char text[700];
    return met("fallocate", name_of(fd, text, sizeof text)) ? errno : REAL(posix_fallocate)(fd, at, size);
}

int mkdir(const char *path, mode_t mode) {
    slow(path);
    struct stat there;
    if (REAL(lstat)(path, &there) != 0 && met("mkdir", path)) return -1; /* what exists needs no space */
    return REAL(mkdir)(path, mode);
}
int rename(const char *from, const char *to) {
    slow(to);
    if (met("rename", to)) return -1;
    return REAL(rename)(from, to);
}
int link(const char *from, const char *to) {
    if (met("link", to)) return -1;
    return REAL(link)(from, to);
}

/* What only looks or deletes needs no space, but time. */
int stat(const char *path, struct stat *into) { slow(path); return REAL(stat)(path, into); }
int lstat(const char *path, struct stat *into) { slow(path); return REAL(lstat)(path, into); }
int fstatat(int folder, const char *path, struct stat *into, int flags) {
    char text[1300];
    slow(joined(folder, path, text, sizeof text));
    return REAL(fstatat)(folder, path, into, flags);
}
int unlink(const char *path) { slow(path); return REAL(unlink)(path); }
int rmdir(const char *path) { slow(path); return REAL(rmdir)(path); }
DIR *opendir(const char *path) { slow(path); return REAL(opendir)(path); }
