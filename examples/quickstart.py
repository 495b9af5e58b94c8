"""A small classifier trained with SparseSVRG: python examples/quickstart.py (about ten seconds)

For a comparison with AdamW, LoRA and SGD, with a report: spidersilk demo
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import spidersilk as silk


def main(epochs: int = 20) -> float:
    torch.manual_seed(0)
    digits = load_digits()  # 1797 images of 8 x 8 pixels
    images, labels = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    train, test = (images[:1437], labels[:1437]), (images[1437:], labels[1437:])
    model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))

    # An anchor is a large batch that sets the gradient estimate. Each small step after it corrects the estimate on the
    # 5 % of the coordinates that mattered most and on 5 % random others.
    optimizer = silk.SparseSVRG(model.parameters(), lr=0.2, k1=0.05, k2=0.05)
    loader = silk.AnchorLoader(train, anchor_batch_size=500, batch_size=50, inner_steps=10)

    for epoch in range(epochs):
        for (x, y), is_anchor in loader:

            def closure(x=x, y=y):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                return loss

            loss = optimizer.step(closure, anchor=is_anchor, samples=len(x))
        # A query is the gradient of one sample; a small step, on a tenth of the coordinates, costs a tenth.
        queries = optimizer.gradient_queries / len(train[0])
        print(f"epoch {epoch}: loss {loss.item():.3f}, {queries:.1f} N queries")

    with torch.no_grad():
        accuracy = (model(test[0]).argmax(1) == test[1]).float().mean().item()
    print(f"test accuracy {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    main()
