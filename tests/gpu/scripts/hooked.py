"""Training that times its own buckets: a comm hook notes bytes, order and duration of each all-reduce."""

import time

import plain as ranks
import timing
import torch
import torch.distributed as dist


class Noted:
    def __init__(self, device):
        self.device = device
        self.buckets = []

    def reduce(self, _state, bucket):
        buffer = bucket.buffer()
        buffer.div_(dist.get_world_size())
        noted = {"index": bucket.index(), "num_bytes": buffer.numel() * buffer.element_size()}
        self.buckets.append(noted)
        if self.device.type == "cpu":
            began = time.perf_counter_ns()
            work = dist.all_reduce(buffer, async_op=True)

            def finish(future):
                noted["ns"] = time.perf_counter_ns() - began
                return future.value()[0]

            return work.get_future().then(finish)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        noted["events"] = begin, end
        begin.record()
        dist.all_reduce(buffer)
        end.record()
        future = torch.futures.Future(devices=[self.device])
        future.set_result(buffer)
        return future

    def all(self):
        for noted in self.buckets:
            if "events" in noted:
                begin, end = noted.pop("events")
                noted["ns"] = round(begin.elapsed_time(end) * 1e6)
        return self.buckets


def train(rank, device, options):
    model = ranks.wrap(timing.layers(options.width, 3), device, bucket_cap_mb=options.bucket_cap_mb)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    noted = Noted(device)
    model.register_comm_hook(None, noted.reduce)
    inputs = torch.randn(8, options.width).to(device)
    steps = []
    for _ in range(options.steps):
        noted.buckets = []
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        steps.append(noted.all())
    ranks.tell(rank, steps=steps)


if __name__ == "__main__":
    parser = ranks.parser()
    parser.add_argument("--width", type=int, default=1536)
    parser.add_argument("--bucket-cap-mb", type=float, default=12)
    ranks.run(train, parser.parse_args())
