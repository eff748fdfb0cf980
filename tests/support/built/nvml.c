/* A libnvidia-ml.so.1 without a driver. nvml.py builds it and says which programs use it.
   VERSION is the driver's version; the environment variable MOCK_NVML_GPUS is the number of GPUs (default 2).
   A function that is missing here ends the program that calls it: "undefined symbol". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, TIMEOUT = 10 };
enum { MOST = 16, ADA = 8, GEFORCE = 5, TOPOLOGY_SYSTEM = 50 };

typedef int result;
typedef const struct gpu { unsigned number; } *gpu;

struct pci {
	char bus_id_legacy[16];
	unsigned domain, bus, device, id, subsystem;
	char bus_id[32];
};
struct memory { unsigned long long total, free, used; };

static const struct gpu gpus[MOST] = {
	{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15},
};

static unsigned number_of_gpus(void)
{
	const char *text = getenv("MOCK_NVML_GPUS");
	unsigned number = text ? (unsigned)atoi(text) : 2;

	return number < MOST ? number : MOST;
}

static result print(char *into, unsigned size, const char *format, unsigned number)
{
	return snprintf(into, size, format, number) < (int)size ? SUCCESS : INSUFFICIENT_SIZE;
}

static result set(unsigned *into, unsigned value)
{
	*into = value;
	return SUCCESS;
}

/* The library and the driver */

result nvmlInit_v2(void) { return SUCCESS; }
result nvmlInit(void) { return SUCCESS; }
result nvmlInitWithFlags(unsigned flags) { (void)flags; return SUCCESS; }
result nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(result code)
{
	switch (code) {
	case SUCCESS: return "Success";
	case INVALID_ARGUMENT: return "Invalid Argument";
	case NOT_SUPPORTED: return "Not Supported";
	case NOT_FOUND: return "Not Found";
	case INSUFFICIENT_SIZE: return "Insufficient Size";
	case TIMEOUT: return "Timeout";
	default: return "Unknown Error";
	}
}

result nvmlSystemGetDriverVersion(char *into, unsigned size) { return print(into, size, VERSION, 0); }
result nvmlSystemGetNVMLVersion(char *into, unsigned size) { return print(into, size, "12." VERSION, 0); }
result nvmlSystemGetCudaDriverVersion(int *into) { return set((unsigned *)into, 12040); }
result nvmlSystemGetCudaDriverVersion_v2(int *into) { return set((unsigned *)into, 12040); }

/* The GPUs */

result nvmlDeviceGetCount_v2(unsigned *into) { return set(into, number_of_gpus()); }

result nvmlDeviceGetHandleByIndex_v2(unsigned index, gpu *into)
{
	if (index >= number_of_gpus())
		return INVALID_ARGUMENT;
	*into = &gpus[index];
	return SUCCESS;
}

#define UUID "GPU-00000000-0000-4000-8000-%012x"
#define BUS_ID "00000000:%02X:00.0"

result nvmlDeviceGetUUID(gpu each, char *into, unsigned size) { return print(into, size, UUID, each->number); }

static result find(const char *wanted, const char *format, gpu *into)
{
	char text[64];

	for (unsigned number = 0; number < number_of_gpus(); number++) {
		print(text, sizeof(text), format, number);
		if (strcmp(text, wanted) == 0) {
			*into = &gpus[number];
			return SUCCESS;
		}
	}
	return NOT_FOUND;
}

result nvmlDeviceGetHandleByUUID(const char *uuid, gpu *into) { return find(uuid, UUID, into); }
result nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, gpu *into) { return find(bus_id, BUS_ID, into); }
result nvmlDeviceGetIndex(gpu each, unsigned *into) { return set(into, each->number); }
result nvmlDeviceGetMinorNumber(gpu each, unsigned *into) { return set(into, each->number); }
result nvmlDeviceGetName(gpu each, char *into, unsigned size) { (void)each; return print(into, size, "NVIDIA L4", 0); }
result nvmlDeviceGetBrand(gpu each, unsigned *into) { (void)each; return set(into, GEFORCE); }
result nvmlDeviceGetArchitecture(gpu each, unsigned *into) { (void)each; return set(into, ADA); }

result nvmlDeviceGetPciInfo_v3(gpu each, struct pci *into)
{
	*into = (struct pci){.bus = each->number, .id = 0x27b810de};
	print(into->bus_id_legacy, sizeof(into->bus_id_legacy), "0000:%02X:00.0", each->number);
	return print(into->bus_id, sizeof(into->bus_id), BUS_ID, each->number);
}

result nvmlDeviceGetMemoryInfo(gpu each, struct memory *into)
{
	(void)each;
	*into = (struct memory){.total = 24ULL << 30, .free = 24ULL << 30};
	return SUCCESS;
}

result nvmlDeviceGetCudaComputeCapability(gpu each, int *major, int *minor)
{
	(void)each;
	*major = 8;
	*minor = 9;
	return SUCCESS;
}

result nvmlDeviceGetAddressingMode(gpu each, void *into) { (void)each, (void)into; return NOT_SUPPORTED; }
result nvmlDeviceGetGpuFabricInfo(gpu each, void *into) { (void)each, (void)into; return NOT_SUPPORTED; }
result nvmlDeviceGetGpuFabricInfoV(gpu each, void *into) { (void)each, (void)into; return NOT_SUPPORTED; }

/* No GPU can be partitioned (MIG) */

result nvmlDeviceGetMigMode(gpu each, unsigned *now, unsigned *next)
{
	(void)each, (void)now, (void)next;
	return NOT_SUPPORTED;
}

result nvmlDeviceIsMigDeviceHandle(gpu each, unsigned *into) { (void)each; return set(into, 0); }
result nvmlDeviceGetMaxMigDeviceCount(gpu each, unsigned *into) { (void)each; return set(into, 0); }

/* How GPUs are connected: by the machine, not by NVLink */

result nvmlDeviceGetTopologyCommonAncestor(gpu one, gpu other, unsigned *into)
{
	(void)one, (void)other;
	return set(into, TOPOLOGY_SYSTEM);
}

result nvmlDeviceGetNvLinkState(gpu each, unsigned link, unsigned *into)
{
	(void)each, (void)link, (void)into;
	return NOT_SUPPORTED;
}

result nvmlDeviceGetNvLinkRemotePciInfo_v2(gpu each, unsigned link, struct pci *into)
{
	(void)each, (void)link, (void)into;
	return NOT_SUPPORTED;
}

/* Events: none ever comes */

result nvmlEventSetCreate(void **into) { *into = (void *)&gpus; return SUCCESS; }
result nvmlEventSetFree(void *events) { (void)events; return SUCCESS; }

result nvmlDeviceGetSupportedEventTypes(gpu each, unsigned long long *into)
{
	(void)each;
	*into = 0;
	return SUCCESS;
}

result nvmlDeviceRegisterEvents(gpu each, unsigned long long types, void *events)
{
	(void)each, (void)types, (void)events;
	return SUCCESS;
}

result nvmlEventSetWait_v2(void *events, void *into, unsigned milliseconds)
{
	(void)events, (void)into;
	nanosleep(&(struct timespec){.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000L}, NULL);
	return TIMEOUT;
}
