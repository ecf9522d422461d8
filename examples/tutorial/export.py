import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                                      nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.classifier = nn.Linear(64 * 7 * 7, 10)

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))

torch.manual_seed(0)
torch.onnx.export(Net().train(), torch.randn(2, 1, 28, 28), "net.onnx", input_names=["image"], output_names=["digit"],
                  dynamic_axes={"image": {0: "batch"}}, training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False)
