#!/usr/bin/python3
"""A fixed sample of generated networks, as PyTorch trains them: tests/network_fuzz.py says what is compared.

The first networks go through the program itself as well; with WINDLASS_THOROUGH (make test-slow) there are more of
both. WINDLASS_NETWORKS="FIRST COUNT" chooses others.
"""

import os
import sys

from network_fuzz import Campaign, Program, draw, limit_threads

THOROUGH = "WINDLASS_THOROUGH" in os.environ
FIRST, COUNT = (int(n) for n in os.environ.get("WINDLASS_NETWORKS", "1 40" if THOROUGH else "1 9").split())
THROUGH_THE_PROGRAM = 3 if THOROUGH else 1


def main():
    limit_threads()
    campaign = Campaign()
    for seed in range(FIRST, FIRST + COUNT):
        campaign.run(draw(seed), f"seed {seed}")
    campaign.service.close()
    campaign.service = Program(os.environ.get("WINDLASS_PROGRAM", "build/release/windlass"))
    for seed in range(FIRST, FIRST + THROUGH_THE_PROGRAM):
        campaign.run(draw(seed), f"seed {seed} in the program", ["single", "half"])
    campaign.summary()
    if campaign.counts["networks"] < COUNT // 2:
        print("too few networks could be trained")
        sys.exit(1)
    sys.exit(1 if campaign.failures else 0)


if __name__ == "__main__":
    main()
