"""Training step as one CUDA graph, replayed many times; DDP's forward is only called during the capture."""

import os

import plain as ranks
import timing
import torch


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def train(rank, device, options):
    torch.cuda.set_device(device)
    side = torch.cuda.Stream(device)
    with torch.cuda.stream(side):
        model = ranks.wrap(timing.layers(256, 4), device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        inputs = torch.randn(64, 256, device=device)
        for _ in range(options.steps):  # DDP needs eleven before a capture
            optimizer.zero_grad(set_to_none=True)
            model(inputs).square().mean().backward()
            optimizer.step()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        model(inputs).square().mean().backward()
        optimizer.step()
    before = resident_bytes()
    for _ in range(options.replays):
        graph.replay()
    torch.cuda.synchronize(device)
    ranks.tell(rank, grown_bytes=resident_bytes() - before)


if __name__ == "__main__":
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")  # torch requires it for captured collectives
    parser = ranks.parser()
    parser.add_argument("--replays", type=int, default=20_000)
    ranks.run(train, parser.parse_args())
