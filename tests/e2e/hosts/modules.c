/* A library for a shell: /proc/modules is another file to it. MODULES names that file.
   Built and added to a copy of the shell by gpu.py. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *place(const char *path)
{
	return strcmp(path, "/proc/modules") == 0 ? MODULES : path;
}

int open64(const char *path, int flags, ...)
{
	va_list more;
	int mode;

	va_start(more, flags);
	mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, int) : 0;
	va_end(more);
	return openat(AT_FDCWD, place(path), flags, mode);
}

int open(const char *path, int flags, ...) __attribute__((alias("open64")));

int faccessat(int folder, const char *path, int mode, int flags)
{
	return syscall(SYS_faccessat2, folder, place(path), mode, flags);
}
