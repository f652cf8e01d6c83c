"""What does NCCL's RAS say while the first rank has launched one all-reduce more than the others?"""

import plain as ranks
import torch
import torch.distributed as dist

from ddpprof.monitor.ras import address_of, ask, behind, in_words, read_answer


def train(rank, device, options):
    gradient = torch.ones(1024, device=device)
    store = dist.distributed_c10d._get_default_store()
    for _ in range(3):
        dist.all_reduce(gradient)
    torch.cuda.synchronize(device)
    if rank == 0:
        work = dist.all_reduce(gradient, async_op=True)
        answer = ask(address_of(None))
        found = read_answer(answer or "", options.ranks)
        late, said = (None, None) if found is None else (behind(found), in_words(found))
        store.set("asked", "1")
        work.wait()
        counts = {} if found is None else {number: dict(one.counts) for number, one in found.items()}
        ranks.tell(rank, answer=answer, counts=counts, late=late, said=said)
    else:
        store.wait(["asked"])
        dist.all_reduce(gradient)


if __name__ == "__main__":
    ranks.run(train, ranks.parser().parse_args())
