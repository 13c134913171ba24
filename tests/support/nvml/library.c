/* A library with NVML's interface, as far as Patchlight uses it, over a file that a test writes.
 *
 * The names, arguments, structures and error codes are those of NVML's documentation. The file
 * that $PATCHLIGHT_TEST_NVML names is mapped by nvmlInit and has a struct state; without it there
 * is no driver. What a card does not support, what it fails with, and how often each function was
 * called is in there, too.
 */
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, TIMEOUT = 10
};

/* Bits of card.lacks, and places in card.calls. */
enum {
    UTILIZATION, MEMORY, POWER, ENERGY, TEMPERATURE, TEMPERATURE_V, CLOCK, PCIE, FIELDS, PROCESSES,
    MIG, ECC, EVENTS, PCIE_FIELDS, NVLINK_FIELDS, FUNCTIONS
};

typedef unsigned long long u64;

struct card {
    char uuid[96], name[96], bus[32];
    u64 minor, error, lacks, calls[FUNCTIONS];
    u64 utilization, memory_total, memory_used, power_mw, energy_mj, temperature;
    u64 sm_mhz, memory_mhz, pcie_kbps[2], pcie_bytes[2], nvlink_kib[2];
    u64 process_count, processes[4], mig, ecc[2], xid;
};

struct state {
    u64 count;
    struct card cards[8];
};

static struct state *state;

int nvmlInitWithFlags(unsigned flags) {
    const char *path = getenv("PATCHLIGHT_TEST_NVML");
    int file = path ? open(path, O_RDWR) : -1;
    (void)flags;
    if (file < 0) return DRIVER_NOT_LOADED;
    state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return state == MAP_FAILED ? DRIVER_NOT_LOADED : OK;
}

int nvmlShutdown(void) {
    munmap(state, sizeof *state);
    state = NULL;
    return OK;
}

const char *nvmlErrorString(int code) { return code == 15 ? "GPU is lost" : "NVML error"; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = state->count;
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct card **card) {
    if (index >= state->count) return INVALID_ARGUMENT;
    *card = &state->cards[index];
    return OK;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, struct card **card) {
    for (unsigned i = 0; i < state->count; i++)
        if (!strcmp(state->cards[i].uuid, uuid)) {
            *card = &state->cards[i];
            return (*card)->error ? (int)(*card)->error : OK;
        }
    return NOT_FOUND;
}

/* Whether the card answers, and can tell this. */
static int asked(struct card *card, int what) {
    card->calls[what]++;
    if (card->error) return card->error;
    return card->lacks >> what & 1 ? NOT_SUPPORTED : OK;
}

static int text(struct card *card, const char *from, char *into, unsigned length) {
    if (card->error) return card->error;
    if (strlen(from) >= length) return INSUFFICIENT_SIZE;
    strcpy(into, from);
    return OK;
}

int nvmlDeviceGetUUID(struct card *card, char *into, unsigned length) {
    return text(card, card->uuid, into, length);
}

int nvmlDeviceGetName(struct card *card, char *into, unsigned length) {
    return text(card, card->name, into, length);
}

int nvmlDeviceGetMinorNumber(struct card *card, unsigned *minor) {
    *minor = card->minor;
    return card->error;
}

struct pci {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
};

int nvmlDeviceGetPciInfo_v3(struct card *card, struct pci *pci) {
    memset(pci, 0, sizeof *pci);
    strcpy(pci->bus_id, card->bus);
    return card->error;
}

int nvmlDeviceGetUtilizationRates(struct card *card, unsigned rates[2]) {
    rates[0] = card->utilization;
    rates[1] = 0;
    return asked(card, UTILIZATION);
}

int nvmlDeviceGetMemoryInfo(struct card *card, u64 memory[3]) {
    memory[0] = card->memory_total;
    memory[1] = card->memory_total - card->memory_used;
    memory[2] = card->memory_used;
    return asked(card, MEMORY);
}

int nvmlDeviceGetPowerUsage(struct card *card, unsigned *milliwatts) {
    *milliwatts = card->power_mw;
    return asked(card, POWER);
}

int nvmlDeviceGetTotalEnergyConsumption(struct card *card, u64 *millijoules) {
    *millijoules = card->energy_mj;
    return asked(card, ENERGY);
}

int nvmlDeviceGetTemperature(struct card *card, int sensor, unsigned *celsius) {
    (void)sensor;
    *celsius = card->temperature;
    return asked(card, TEMPERATURE);
}

struct temperature {
    unsigned version;
    int sensor, celsius;
};

int nvmlDeviceGetTemperatureV(struct card *card, struct temperature *temperature) {
    temperature->celsius = card->temperature;
    return asked(card, TEMPERATURE_V);
}

int nvmlDeviceGetClockInfo(struct card *card, int which, unsigned *megahertz) {
    *megahertz = which == 1 ? card->sm_mhz : card->memory_mhz;
    return asked(card, CLOCK);
}

int nvmlDeviceGetPcieThroughput(struct card *card, int which, unsigned *kilobytes) {
    *kilobytes = card->pcie_kbps[which];
    return asked(card, PCIE);
}

struct field {
    unsigned id, scope;
    long long timestamp, latency;
    int type, code;
    u64 value;
};

int nvmlDeviceGetFieldValues(struct card *card, int count, struct field *fields) {
    int code = asked(card, FIELDS);
    for (int i = 0; !code && i < count; i++) {
        int nvlink = fields[i].id == 138 || fields[i].id == 139, pcie = fields[i].id == 197;
        fields[i].type = 3;
        fields[i].code = OK;
        if (nvlink && fields[i].scope == 0xffffffffu)
            fields[i].value = card->nvlink_kib[fields[i].id - 138];
        else if (pcie || fields[i].id == 198)
            fields[i].value = card->pcie_bytes[fields[i].id - 197];
        else
            fields[i].code = INVALID_ARGUMENT;
        if (card->lacks >> (nvlink ? NVLINK_FIELDS : PCIE_FIELDS) & 1)
            fields[i].code = NOT_SUPPORTED;
    }
    return code;
}

struct process {
    unsigned pid;
    u64 memory;
    unsigned gpu_instance, compute_instance;
};

int nvmlDeviceGetComputeRunningProcesses_v3(struct card *card, unsigned *room, struct process *into) {
    unsigned had = *room;
    int code = asked(card, PROCESSES);
    *room = card->process_count;
    if (code || !card->process_count) return code;
    if (had < card->process_count) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < card->process_count; i++)
        into[i] = (struct process){card->processes[i], 1 << 20, -1, -1};
    return OK;
}

int nvmlDeviceGetMigMode(struct card *card, unsigned *now, unsigned *pending) {
    *now = *pending = card->mig;
    return asked(card, MIG);
}

int nvmlDeviceGetTotalEccErrors(struct card *card, int kind, int counter, u64 *count) {
    *count = counter ? 0 : card->ecc[kind];
    return asked(card, ECC);
}

int nvmlEventSetCreate(void **set) {
    *set = state;
    return OK;
}

int nvmlEventSetFree(void *set) { return set == state ? OK : INVALID_ARGUMENT; }

int nvmlDeviceGetSupportedEventTypes(struct card *card, u64 *types) {
    *types = card->lacks >> EVENTS & 1 ? 0 : 8;
    return card->error;
}

int nvmlDeviceRegisterEvents(struct card *card, u64 types, void *set) {
    (void)set;
    card->calls[EVENTS]++;
    return types & ~8ull ? NOT_SUPPORTED : OK;
}

struct event {
    struct card *card;
    u64 type, data;
    unsigned gpu_instance, compute_instance;
};

int nvmlEventSetWait_v2(void *set, struct event *event, unsigned timeout_ms) {
    (void)set;
    for (unsigned waited = 0;; waited += 5) {
        for (unsigned i = 0; i < state->count; i++)
            if ((event->data = __atomic_exchange_n(&state->cards[i].xid, 0, __ATOMIC_SEQ_CST))) {
                event->card = &state->cards[i];
                event->type = 8;
                return OK;
            }
        if (waited >= timeout_ms) return TIMEOUT;
        unsigned left = timeout_ms - waited < 5 ? timeout_ms - waited : 5;
        nanosleep(&(struct timespec){0, left * 1000000L}, NULL);
    }
}
