{
  'targets': [
    {
      'target_name': 'llama_state',
      'sources': ['addon.cc', 'llama_library.cc', 'loaded_model.cc', 'sequence_state.cc'],
      'dependencies': ["<!(node -p \"require('node-addon-api').targets\"):node_addon_api_except_all"],
      'defines': ['NAPI_VERSION=9', 'NODE_API_SWALLOW_UNTHROWABLE_EXCEPTIONS'],
      'cflags!': ['-fno-exceptions'],
      'cflags_cc!': ['-fno-exceptions', '-std=gnu++17', '-fno-rtti'],
      'cflags_cc': ['-std=gnu++20', '-O2', '-Wall', '-Wextra', '-fvisibility=hidden'],
      'ldflags': ['-pthread'],
      'libraries': ['-ldl'],
    },
  ],
}
